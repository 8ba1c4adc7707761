#!/usr/bin/env bash
#SBATCH --gres=gpu:2
#SBATCH --cpus-per-task=16
#SBATCH --mem=64G
#SBATCH --time=08:00:00
torchrun --standalone --nproc_per_node=gpu ddp.py --num-workers 8
