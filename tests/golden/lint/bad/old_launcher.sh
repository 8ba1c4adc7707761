#!/bin/bash
#SBATCH --gpus-per-node=2
#SBATCH --exclusive
python -m torch.distributed.launch --nproc_per_node=2 old_launcher_main.py  # expect: E207
