#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
deepspeed --num_nodes=2 --num_gpus=4 train.py --deepspeed ds.json  # expect: E201
