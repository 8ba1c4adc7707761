#!/bin/bash
#SBATCH --cpus-per-gpu=8
#SBATCH --nodes=1
#SBATCH --gres=gpu:v100:2
torchrun --standalone --nproc_per_node=8 train.py  # expect: E204
