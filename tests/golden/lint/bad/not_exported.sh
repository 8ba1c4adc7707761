#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --exclusive
MASTER_ADDR=$(hostname)  # expect: E312
MASTER_PORT=29500  # expect: E312
THREADS=4
OMP_NUM_THREADS=$((THREADS * 2))  # expect: E312
export NCCL_IB_DISABLE=0
NCCL_DEBUG=INFO  # expect: E312
srun python elsewhere.py
