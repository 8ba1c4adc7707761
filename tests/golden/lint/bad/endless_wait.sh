#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=2 --cpus-per-gpu=8
vllm serve some/model --port 8000 &
python evaluate.py --server http://localhost:8000  # expect: E507
wait
