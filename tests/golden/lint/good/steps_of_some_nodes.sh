#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
set -e
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
srun --nodes=3 --ntasks=3 -w "${nodes[0]},${nodes[1]},${nodes[2]}" torchrun --nnodes=3 \
    --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=${nodes[0]}:29500 train_elsewhere.py &
training=$!
srun --nodes=1 --ntasks=1 -w "${nodes[3]}" python generate.py
wait $training
