#!/bin/bash
#SBATCH --gres=gpu:1
conda activate torch  # expect: E408
python train.py
