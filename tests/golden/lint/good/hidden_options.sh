#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
source common.sh
srun torchrun $TORCHRUN_OPTIONS train_elsewhere.py
srun $SRUN_OPTIONS python train_elsewhere.py
