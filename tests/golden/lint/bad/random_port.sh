#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
export MASTER_PORT=$RANDOM  # expect: E301
export MASTER_ADDR=localhost
python elsewhere.py
