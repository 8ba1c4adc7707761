#!/bin/bash
#SBATCH --partition=${PARTITION:-gpu}   # expect: E106
#SBATCH --nodes=${NODES:-1}   # expect: E106
#SBATCH --output=$HOME/%j.out   # expect: E106
python train.py
