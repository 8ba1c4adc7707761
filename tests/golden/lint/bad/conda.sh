#!/bin/bash
#SBATCH --gres=gpu:1
conda activate torch  # expect: E408
OMP_NUM_THREADS=4  # expect: E312
python train.py
