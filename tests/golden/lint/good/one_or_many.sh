#!/bin/bash
#SBATCH --cpus-per-gpu=8
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
if [ "${DEBUG:-0}" = 1 ]; then
    torchrun --standalone --nproc_per_node=1 ddp.py --epochs 1
else
    torchrun --standalone --nproc_per_node=4 ddp.py
fi
