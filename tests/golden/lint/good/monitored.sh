#!/bin/bash
#SBATCH --gres=gpu:2 --cpus-per-gpu=8
#SBATCH --output=%x_%j.log
set -o pipefail
nvidia-smi dmon -s u -d 10 > "gpu-$SLURM_JOB_ID.log" &
monitor=$!
torchrun --standalone --nproc_per_node=2 ddp.py 2>&1 | tee "train-$SLURM_JOB_ID.log"
code=$?
kill $monitor
exit $code
