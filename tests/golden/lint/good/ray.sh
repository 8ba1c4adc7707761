#!/bin/bash
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --exclusive
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
head=${nodes[0]}
srun --nodes=1 --ntasks=1 -w "$head" ray start --head --port=6379 --block &
sleep 10
for ((i = 1; i < SLURM_JOB_NUM_NODES; i++)); do
    srun --nodes=1 --ntasks=1 -w "${nodes[$i]}" ray start --address "$head:6379" --block &
    sleep 5
done
python -u tune.py
