#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
export MASTER_ADDR=$(hostname) MASTER_PORT=29500
NODE_RANK=$SLURM_NODEID  # expect: E308
srun torchrun --nnodes=2 --nproc_per_node=4 --node_rank=$NODE_RANK \
    --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT train.py
