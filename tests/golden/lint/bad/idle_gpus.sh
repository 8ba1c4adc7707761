#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --exclusive
export MASTER_ADDR=localhost MASTER_PORT=29500 RANK=0 WORLD_SIZE=1 LOCAL_RANK=0
python idle_gpus_main.py  # expect: E203
