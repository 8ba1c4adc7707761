#!/bin/bash
#SBATCH --output=nowhere/%j.out  # expect: E501
#SBATCH --error=nowhere/%j.err
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=4
set -e
srun python prepare.py  # expect: E401
srun python train.py
