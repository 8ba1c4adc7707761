#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=2
#SBATCH --cpus-per-task=8
#SBATCH --exclusive
export OMP_NUM_THREADS=4
soruce env.sh
torchrun --standalone --nproc_per_node=2 spawned_twice_main.py
