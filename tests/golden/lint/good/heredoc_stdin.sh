#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --exclusive
export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500
srun bash <<'EOF'
export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
python ddp.py
EOF
