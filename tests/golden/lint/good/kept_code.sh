#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=2 --cpus-per-gpu=8
torchrun --standalone --nproc_per_node=2 train_elsewhere.py
code=$?
echo "finished with $code"
exit $code
