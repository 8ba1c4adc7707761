#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=1
#SBATCH --signal=B:SIGUSR1@120
requeue() {
  scontrol requeue "$SLURM_JOB_ID"
}
trap requeue USR1
srun python evaluate.py  # expect: E509
