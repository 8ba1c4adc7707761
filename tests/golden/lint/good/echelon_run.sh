#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --no-kill
exec python -m echelon run --nodes 2 --procs 4 train.py
