#!/bin/bash
#SBATCH --job-name=late
set -e
# the GPUs
#SBATCH --gres=gpu:4  # expect: E102
#SBATCH --time=01:00:00
srun python train.py
