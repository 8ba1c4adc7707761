#!/bin/bash
# Started on each node without a hostfile, deepspeed knows of no other node.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --exclusive
srun deepspeed --num_gpus=4 train.py --deepspeed ds.json  # expect: E205
