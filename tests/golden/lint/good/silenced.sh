#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
# This partition gives whole nodes only.  # echelon: ignore E301
export MASTER_PORT=29500
export MASTER_ADDR=$(hostname)
srun python train_elsewhere.py
