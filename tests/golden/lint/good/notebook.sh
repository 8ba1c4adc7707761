#!/bin/bash
#SBATCH --gres=gpu:1
#SBATCH --time=0-08:00
port=$(shuf -i 8000-9999 -n 1)
echo "ssh -L $port:$(hostname):$port login"
jupyter lab --no-browser --ip=0.0.0.0 --port="$port"
