#!/bin/bash
#SBATCH --cpus-per-gpu=8
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
# Numbers that are no ports, and a port that nothing uses.
GPUS_PER_NODE=4
export MASTER_PORT=29500
set -e
LAUNCHER="torchrun --standalone --nproc_per_node $GPUS_PER_NODE"
$LAUNCHER ddp.py
python plain.py
