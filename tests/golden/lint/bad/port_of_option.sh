#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4 --cpus-per-gpu=8
export GPUS_PER_NODE=4
THE_PORT=29511  # expect: E301
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export LAUNCHER="accelerate launch --num_processes $((SLURM_NNODES * GPUS_PER_NODE)) \
    --num_machines $SLURM_NNODES --rdzv_backend c10d --machine_rank \$SLURM_NODEID \
    --main_process_ip $head --main_process_port $THE_PORT"
srun bash -c "$LAUNCHER finetune.py"
