#!/bin/bash
#SBATCH --nodes=1
set -Eeuo pipefail
srun --ntasks=1 python train.py
echo "done"
