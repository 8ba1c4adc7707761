#!/bin/bash
#SBATCH --nodes=1
# expect E210 at line 4 of placeholder_in_bash.sh
source activate <YOUR_ENV_NAME>
python train.py
