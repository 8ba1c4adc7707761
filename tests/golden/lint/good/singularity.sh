#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
export MASTER_ADDR=$(hostname) MASTER_PORT=29500 WORLD_SIZE=$SLURM_NTASKS
srun singularity exec --nv image.sif bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID
python ddp.py --epochs 5'
