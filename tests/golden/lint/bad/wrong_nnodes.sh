#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --exclusive
head=$(hostname)
srun torchrun --nproc_per_node=2 --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=$head:29500 train.py  # expect: E205
