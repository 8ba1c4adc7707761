#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --exclusive
# expect on the next line: E205
deepspeed --nproc_per_node=4 train.py --deepspeed ds.json
