#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=1
pids=()
for host in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
    srun --nodes=1 --ntasks=1 -w "$host" python plain.py &
    pids+=($!)
done
code=0
for pid in "${pids[@]}"; do
    wait "$pid" || code=1
done
exit $code
