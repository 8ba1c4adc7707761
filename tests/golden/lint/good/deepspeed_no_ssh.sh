#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
hostfile=hosts.$SLURM_JOB_ID
scontrol show hostnames "$SLURM_JOB_NODELIST" | sed 's/$/ slots=8/' > "$hostfile"
MASTER=$(hostname)
srun bash -c "deepspeed --hostfile $hostfile --no_ssh --node_rank \$SLURM_NODEID \
    --master_addr $MASTER --master_port 29501 pretrain.py --deepspeed_config ds.json"
