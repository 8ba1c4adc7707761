#!/bin/bash
#SBATCH --nodes=1
{{ modules(4) }}
python plain.py
