#!/bin/bash
#SBATCH --job-name=prove
#SBATCH --mail-type=ALL
#SBATCH --mail-user=[email]  # expect: E116
#SBATCH --time=01:00:00
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1  # expect: E403
#SBATCH --output=output.txt  # expect: E502
#SBATCH --gres=gpu:2

source venv/bin/activate
export MASTER_PORT=29500  # expect: E301
primo=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR=$primo
export NCCL_SOCKET_IFNAME=eth0  # expect: E405
srun python3 italian_main.py  # expect: E404
