#!/bin/bash
#SBATCH --nodes=2
#SBATCH --exclusive
export MASTER_ADDR=$(hostname) MASTER_PORT=29500
export THREADS=${SLURM_NTASKS:-1}
srun bash -c 'WORLD_SIZE=$SLURM_NTASKS RANK=$SLURM_PROCID python train.py'
