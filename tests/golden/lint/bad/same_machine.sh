#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --exclusive
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)  # expect: E211
set -e
head=$(hostname)
srun accelerate launch --num_processes 8 --num_machines 4 --main_process_ip $head --main_process_port 29500 "$here/train.py"
srun accelerate launch --multi_gpu --num_processes 2 train.py
srun accelerate launch --config_file nodes.yaml train.py
