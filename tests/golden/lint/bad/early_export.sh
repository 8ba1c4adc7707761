#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
export MASTER_ADDR=localhost MASTER_PORT=29500
export RANK=$SLURM_PROCID  # expect: E308
export LOCAL_RANK=$SLURM_LOCALID  # expect: E308
srun python train.py
