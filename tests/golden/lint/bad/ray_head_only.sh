#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --exclusive
ray start --head --port=6379  # expect: E201
python -u tune.py
