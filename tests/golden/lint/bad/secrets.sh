#!/bin/bash
#SBATCH --gres=gpu:1
export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567  # expect: E406
wandb login 0123456789abcdef0123456789abcdef01234567  # expect: E406
export TOKENIZERS_PARALLELISM=false
export AWS_SECRET_ACCESS_KEY=$(cat ~/.aws/key)
HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345 python train.py  # expect: E406
