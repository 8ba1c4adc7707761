#!/bin/bash
#SBATCH --nodes=1
# Also runs by hand, outside of a job.
here=${SLURM_SUBMIT_DIR:-$(dirname "$0")}
cd "$here" || exit 1
python plain.py
