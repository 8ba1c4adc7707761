#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=2 --cpus-per-gpu=8
export DATA = /scratch/data  # expect: E209
export MODEL= resnet50  # expect: E209
export EMPTY=
torchrun --standalone --nproc_per_node=2 train.py  # expect: E507
echo "finished"
date
