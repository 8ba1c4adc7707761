#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=1
#BATCH --mem=64G  # expect: E102
for seed in 1 2 3; do
  python evaluate.py --seed "$seed"  # expect: E507
done
echo "all seeds done"
exit 0
