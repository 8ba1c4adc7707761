#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
export MASTER_ADDR=$(hostname) MASTER_PORT=29500
export WORLD_SIZE=$SLURM_NNODES  # expect: E309
srun python train.py
