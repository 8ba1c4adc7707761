#!/bin/bash
#SBATCH --ntasks=1 --cpus-per-task=8 --mem=16G
#SBATCH hetjob
#SBATCH --ntasks=8 --cpus-per-task=1 --mem-per-cpu=2G
srun --het-group=0 ./server : --het-group=1 ./client
