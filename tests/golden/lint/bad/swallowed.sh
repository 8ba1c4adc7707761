#!/bin/bash
#SBATCH --gres=gpu:2 --cpus-per-gpu=8
torchrun --standalone --nproc_per_node=2 train.py 2>&1 | tee train-$SLURM_JOB_ID.log  # expect: E507
srun --ntasks=1 python evaluate.py &  # expect: E507
echo started
