#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --exclusive
export CUDA_VISIBLE_DEVICES=0, 1
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
nodes_array=("$nodes")
export MASTER_ADDR=${nodes_array[0]}
export MASTER_PORT=$(( 20000 + (SLURM_JOBID % 50000) ))  # expect: E301
srun torchrun --nnodes=2 --nproc_per_node=2 --rdzv_backend=c10d \
    --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT train.py
