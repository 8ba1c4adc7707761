#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --exclusive
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) MASTER_PORT=29500
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" apptainer exec --nv --bind /scratch pytorch.sif \
    torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_id=$SLURM_JOB_ID \
    --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT train_in_image.py
