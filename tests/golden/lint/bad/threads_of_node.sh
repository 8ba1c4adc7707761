#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-gpu=2
set -e
export OMP_NUM_THREADS=${SLURM_CPUS_ON_NODE}  # expect: E403
cd /path/to/project  # expect: E116
srun "$@" --data data  # expect on the next line: E116
srun fit --features /path/to/features
