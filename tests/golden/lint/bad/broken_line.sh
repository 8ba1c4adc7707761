#!/bin/bash
#SBATCH --gpus-per-node=2 --cpus-per-gpu=8
torchrun --standalone --nproc_per_node=2 \
    train.py --epochs 3 \ 
    --lr 0.1
# expect E208 at line 4 of broken_line.sh
