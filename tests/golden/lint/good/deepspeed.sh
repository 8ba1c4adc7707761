#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
hostfile=hosts.$SLURM_JOB_ID
scontrol show hostnames "$SLURM_JOB_NODELIST" | sed 's/$/ slots=8/' > "$hostfile"
deepspeed --hostfile "$hostfile" --master_port 29501 pretrain.py --deepspeed_config ds.json
