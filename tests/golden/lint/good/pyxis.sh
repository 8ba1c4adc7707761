#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --container-image=registry/pytorch:24.05
#SBATCH --exclusive
export MASTER_ADDR=$(hostname) MASTER_PORT=29500
srun --container-image=pytorch.sqsh --container-mounts=/data:/data --no-container-mount-home \
    --mpi=pmix --label python -u pretrain.py --data /data
