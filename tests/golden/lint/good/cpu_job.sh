#!/bin/bash
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=0
#SBATCH --time=1-12
module load R/4.3
Rscript fit.R --threads "$SLURM_CPUS_PER_TASK"
