#!/bin/bash
export MASTER_ADDR=$(hostname)  # expect: E307
export MASTER_PORT=$(shuf -i 20000-30000 -n 1)  # expect: E301
torchrun --nnodes=2 --nproc_per_node=4 --node_rank=$SLURM_NODEID --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT train.py
