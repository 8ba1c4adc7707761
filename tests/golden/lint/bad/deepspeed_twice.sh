#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
scontrol show hostnames | sed 's/$/ slots=4/' > hosts  # expect: E502
srun deepspeed --hostfile=hosts train.py --deepspeed ds.json  # expect: E202
