#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --exclusive
deepspeed --num_gpus=4 pretrain.py --deepspeed_config ds.json
