#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
export MASTER_ADDR=$(hostname) MASTER_PORT=29500 WORLD_SIZE=$SLURM_NTASKS
srun bash -c "RANK=$SLURM_PROCID python train.py"  # expect: E308
