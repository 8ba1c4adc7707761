#!/bin/bash
#SBATCH -N 2
#SBATCH -p gpu
#SBATCH --gres gpu:2
#SBATCH --ntasks-per-node=2
srun python dist_file_main.py --dist-backend nccl --dist-file meet
