#!/bin/bash
#SBATCH --output=nowhere/%x/%j.out
#SBATCH --error=run.err  # expect: E502
#SBATCH --array=1-4
mkdir -p nowhere
python train.py $SLURM_ARRAY_TASK_ID
