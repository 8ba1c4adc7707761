#!/bin/bash
# Without --ntasks, Slurm sets no number of tasks in the job script.
#SBATCH --nodes=2
#SBATCH --exclusive
export MASTER_ADDR=$(hostname) MASTER_PORT=29500
export WORLD_SIZE=$SLURM_NTASKS  # expect: E314
srun bash -c 'RANK=$SLURM_PROCID python train.py'
