#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
GPUS=8
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
DISTRIBUTED=(
    --nproc_per_node $GPUS
    --nnode $SLURM_NNODES
    --rdzv_id $RANDOM
    --rdzv_backend c10d
    --rdzv_endpoint $head:29500
)
srun torchrun "${DISTRIBUTED[@]}" --tee 3 train_elsewhere.py
