#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
torchrun --standalone --nproc_per_node=2 two_devices.py
