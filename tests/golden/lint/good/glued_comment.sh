#!/bin/bash
#SBATCH --nodes=1# one is enough for this
#SBATCH --time=01:00:00#hours, minutes and seconds
python plain.py
