#!/bin/bash
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=32
module load anaconda
conda activate nlp
accelerate launch --multi_gpu --num_processes 4 --mixed_precision bf16 finetune.py --model small
