#!/bin/bash -l
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4
#SBATCH --signal=SIGUSR1@90
#SBATCH --time=24:00:00
conda activate lightning
export NCCL_DEBUG=INFO
export PYTHONFAULTHANDLER=1
srun python fit.py
