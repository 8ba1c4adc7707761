#!/bin/bash
#SBATCH --nodes=1
#SBATCH --partition=gpu-whole-nodes
torchrun --standalone --nproc_per_node=2 two_devices.py
