#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus=3  # expect: E115
#SBATCH --account=<account>  # expect: E116
#SBATCH --mail-user = ada@example.org  # expect: E105
#SBATCH --mail-type=END
srun nvidia-smi
