#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
module load openmpi
mpirun -np "$SLURM_NTASKS" --map-by ppr:4:node -x LD_LIBRARY_PATH python train_mpi.py --deepspeed ds.json
