#!/bin/bash
#SBATCH --partition=gpu
#SBATCH --gpus=1
#SBATCH --cpus-per-task=4
#SBATCH --mem-per-cpu=4G
#SBATCH --time=30
#SBATCH --mail-type=END,FAIL
#SBATCH --mail-user=ada@example.org
cd "$SLURM_SUBMIT_DIR" || exit 1
python plain.py --workers 4
