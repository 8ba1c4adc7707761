#!/usr/bin/env bash
# Submitted as: sbatch --nodes=2 --gpus-per-node=8 gpus_of_caller.sh
#SBATCH --job-name=training
#SBATCH --ntasks-per-node=1
set -e
: "${SLURM_GPUS_PER_NODE:?call sbatch with --gpus-per-node}"
srun python -m training --devices "${SLURM_GPUS_PER_NODE:?}"
