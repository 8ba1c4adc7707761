#!/bin/bash
# One of these runs on every node.
source "$HOME/.bashrc"
conda activate torch
echo "node $SLURM_NODEID is $(hostname)"
exec torchrun --nnodes="$SLURM_NNODES" --nproc_per_node=4 --node_rank="$SLURM_NODEID" \
    --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" ddp.py "$@"
