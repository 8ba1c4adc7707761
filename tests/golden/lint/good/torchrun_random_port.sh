#!/bin/bash
#SBATCH -J llm
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:a100:4
#SBATCH -c 32
#SBATCH -t 2-0
#SBATCH -o %x.%j.out
#SBATCH -e %x.%j.err
export MASTER_ADDR=$(hostname)
export MASTER_PORT=$((20000 + RANDOM % 20000))
srun -c 32 torchrun --nnodes=$SLURM_JOB_NUM_NODES --nproc_per_node=4 \
    --rdzv_id=$SLURM_JOB_ID --rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT \
    -m project.train config.yaml
