#!/bin/bash
#SBATCH --cpus-per-gpu=8
#SBATCH --gres=gpu:4
export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7  # expect: E409
torchrun --standalone --nproc_per_node=4 train.py
