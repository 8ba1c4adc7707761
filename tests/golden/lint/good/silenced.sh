#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
# This partition gives whole nodes only.  # echelon: ignore E301
export MASTER_PORT=29500
export MASTER_ADDR=$(hostname)
export NCCL_SOCKET_IFNAME=eth0  # echelon: ignore E405
srun python train_elsewhere.py
