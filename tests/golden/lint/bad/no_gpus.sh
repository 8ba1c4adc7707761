#!/bin/bash
#SBATCH --nodes=1
#SBATCH --cpus-per-task=8
torchrun --standalone --nproc_per_node=2 no_gpus_main.py
rm -rf /scratch/tmp-files
# expect E507 at line 4 of no_gpus.sh
