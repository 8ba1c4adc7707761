#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus=3
#SBATCH --account=<account>
#SBATCH --mail-user = ada@example.org  # expect: E104
#SBATCH --mail-type=END
srun nvidia-smi
