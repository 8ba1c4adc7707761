#!/bin/bash
#SBATCH --node=2  # expect: E104
#SBATCH --ntask-per-node=2  # expect: E104
#SBATCH --gpus_per_node=2  # expect: E104
 #SBATCH --mem=4G  # expect: E102
#SBATCH --time=2hours  # expect: E104
#SBATCH --cpus-per-task=all  # expect: E104
srun --cpu_bind=none --ntasks-pernode=2 hostname
