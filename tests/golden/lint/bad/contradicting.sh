#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --ntasks=8
#SBATCH --mem=64G
#SBATCH --mem-per-cpu=4G  # expect: E114
#SBATCH --gres=gpu:4
#SBATCH --gpus-per-node=a100:4  # expect: E114
#SBATCH --partition=short
#SBATCH --partition=long  # expect: E107
#SBATCH --error=$HOME/%j.err  # expect: E106
srun hostname
