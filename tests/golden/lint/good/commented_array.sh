#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
OPTIONS=(
    # the nodes
    --nnodes=2  # all of them
    --nproc_per_node=4

    # where they meet
    --rdzv_backend=c10d
    --rdzv_endpoint=$(hostname):29500
)
srun torchrun "${OPTIONS[@]}" train_elsewhere.py
