#!/bin/bash
#SBATCH --array=0-9%3
#SBATCH --gres=gpu:1
#SBATCH --output=logs/sweep-%A_%a.out
rates=(0.1 0.03 0.01)
lr=${rates[$((SLURM_ARRAY_TASK_ID % 3))]}
python plain.py --lr "$lr" --seed "$SLURM_ARRAY_TASK_ID"
