#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
MASTER_PORT=6000
LAUNCHER="torchrun --nproc_per_node 4 --nnodes $SLURM_NNODES --node_rank \$SLURM_PROCID \
    --rdzv_endpoint $MASTER_ADDR:$MASTER_PORT --rdzv_backend c10d --max_restarts 0"
CMD="pretrain.py --layers 24"
srun --jobid $SLURM_JOBID bash -c "$LAUNCHER $CMD" 2>&1
