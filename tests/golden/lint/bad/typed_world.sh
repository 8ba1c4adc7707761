#!/bin/bash
#SBATCH --job-name=resnet
#SBATCH --partition=gpu
#SBATCH --time=72:00:00
### four nodes with one GPU each
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:1
#SBATCH --constraint=p40&gmem24G
#SBATCH --cpus-per-task=8
#SBATCH --mem=64gb
#SBATCH --chdir=/scratch/ada
#SBATCH --output=/scratch/ada/%x-%j.out
export MASTER_PORT=12340  # expect: E301
export WORLD_SIZE=4  # expect: E309
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
source ~/anaconda3/etc/profile.d/conda.sh
conda activate torch
# expect on the next line: E310 E401
srun python typed_world_main.py --net resnet18 \
    --lr 1e-3 --epochs 50
