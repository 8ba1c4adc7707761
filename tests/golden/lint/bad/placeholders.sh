#!/bin/bash
#SBATCH --account=<your account>
#SBATCH --partition={partition}  # expect: E116
#SBATCH --time={{ time_limit }}
#SBATCH --qos=project_xxxx  # expect: E116
#SBATCH --nodes={nodes}  # expect: E116
#SBATCH --mem=<memory>  # expect: E116
# expect E116 at line 2 of placeholders.sh
# expect E116 at line 4 of placeholders.sh
srun python train.py
