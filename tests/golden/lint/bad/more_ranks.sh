#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=32
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
config=base.yaml
srun --cpus-per-task=32 bash -lc \
    "torchrun --standalone --nproc_per_node=4 more_ranks_main.py --config $config"  # expect: E204
