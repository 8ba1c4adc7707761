#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=32
#SBATCH --hint=nomultithread
#SBATCH --constraint="haswell&ssd"
module load gromacs
srun gmx_mpi mdrun -s run.tpr -maxh 11.5
