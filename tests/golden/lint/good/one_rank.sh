#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=1
torchrun --standalone --nproc_per_node=1 parts/one_rank_main.py
