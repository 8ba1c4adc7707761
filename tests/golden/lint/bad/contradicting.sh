#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --ntasks=16  # expect: E114
#SBATCH --mem=64G
#SBATCH --mem-per-cpu=4G  # expect: E114
#SBATCH --gres=gpu:4
#SBATCH --gpus-per-node=2  # expect: E114
#SBATCH --partition=short
#SBATCH --partition=long  # expect: E107
#SBATCH --error=$HOME/%j.err  # expect: E106
srun hostname
