#!/bin/bash
#SBATCH --node=2  # expect: E105
#SBATCH --ntask-per-node=2  # expect: E104
#SBATCH --gpus_per_node=2  # expect: E104
 #SBATCH --mem=4G  # expect: E103
#SBATCH --time=2hours  # expect: E112
#SBATCH --cpus-per-task=all  # expect: E113
srun --cpu_bind=none --ntasks-pernode=2 hostname  # expect: E104
