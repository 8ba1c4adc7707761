#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=2
# Serves until the time limit, as intended.
vllm serve some/model --port 8000 &
tensorboard --logdir runs &
wait
