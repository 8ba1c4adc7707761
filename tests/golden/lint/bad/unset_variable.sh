#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gres=gpu:a100:4
torchrun --standalone --nproc_per_node=$SLURM_GPUS_PER_NODE train.py  # expect: E314
