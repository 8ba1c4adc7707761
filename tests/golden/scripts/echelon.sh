#!/bin/bash
# Made by: echelon script --style echelon train.py --epochs 14 --note 'it'"'"'s a test'
#SBATCH --job-name=train
#SBATCH --partition=gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:a100:4
#SBATCH --cpus-per-task=32
#SBATCH --mem=64G
#SBATCH --time=02:00:00
#SBATCH --output=%x-%j.out
# Without it, Slurm ends the whole job when a node fails.
#SBATCH --no-kill

# --- environment
if ! module load cuda/12.4; then
    echo 'cannot load the environment modules cuda/12.4' "on $(hostname); list them with: module avail" >&2
    exit 1
fi
source /home/ada/venv/bin/activate || exit 1
export NCCL_DEBUG=INFO
export DATA_DIR='/data/tiny imagenet'
python=python3

# --- start
# Inside an allocation, `echelon run` uses all its nodes.
exec "$python" -m echelon run --nodes 2 --procs 4 --cpus-per-task 32 train.py --epochs 14 --note 'it'"'"'s a test'
