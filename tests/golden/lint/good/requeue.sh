#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gres=gpu:1
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=requeue-%j.out
again() {
    echo "time is up: again, as restart $((${SLURM_RESTART_COUNT:-0} + 1))"
    scontrol requeue "$SLURM_JOB_ID"
}
trap again USR1
srun python plain.py --resume last.pt &
wait $!
