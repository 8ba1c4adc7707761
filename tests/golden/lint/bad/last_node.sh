#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | tail -n 1)  # expect: E307
export MASTER_PORT=29500
srun python train.py
