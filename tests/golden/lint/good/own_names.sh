#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
# Names that look like variables of programs, but only this script reads them.
NCCL_TEST_DIR=/opt/nccl-tests
HF_MODEL=llama
WANDB_GROUP_PREFIX=sweep
MASTER_PORT=29500
OMP_NUM_THREADS=8
WANDB_MODE=offline
HF_HUB_OFFLINE=1
NCCL_DEBUG=WARN
TORCH_HOME=/scratch/torch
RANK=0
# torchrun sets this one itself.
WORLD_SIZE=8
if [[ $WANDB_MODE == offline ]]; then echo "no network"; fi
[ "$HF_HUB_OFFLINE" = 1 ] && echo "no downloads"
case $NCCL_DEBUG in WARN) echo quiet ;; esac
for folder in $TORCH_HOME; do mkdir -p "$folder"; done
(( OMP_NUM_THREADS > 4 )) && echo "many threads"
for ((i = RANK; i < 2; i++)); do echo "$i"; done
# Slurm has already exported this one.
CUDA_VISIBLE_DEVICES=0,1,2,3
srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$(hostname):$MASTER_PORT train.py
