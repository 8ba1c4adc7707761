#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
head=$(hostname)
ARGS=(--nproc_per_node 8 --nnodes "$SLURM_NNODES" --rdzv_backend c10d --rdzv_endpoint $head:29500)
srun torchrun "${ARGS[@]}" train.py  # expect: E202
