#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --exclusive
head=$(hostname)
# expect E205 at line 8 of wrong_machines.sh
srun bash -c "accelerate launch --num_processes 4 --machine_rank \$SLURM_NODEID \
    --num_machines 2 --main_process_ip $head --main_process_port 29500 train.py"
