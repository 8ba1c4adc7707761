#!/bin/bash
#SBATCH --nodes=2
srun --ntasks-per-node=1 --gpus-per-task=1 torchrun --nnodes=2 --nproc_per_node=1 --rdzv_backend=c10d \
    --rdzv_endpoint=$(hostname):$((20000 + RANDOM % 10000)) gpu_of_task.py
