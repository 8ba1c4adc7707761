#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks=4
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=8
# Four trainings that have nothing to do with each other.
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
srun bash -c 'python plain.py --seed $SLURM_PROCID'
