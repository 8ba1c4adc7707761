#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
srun bash -c 'srun --overlap --nodes=1 --ntasks=2 -w "$SLURMD_NODENAME" ./measure --node $SLURM_NODEID'
