"""Where runs go: this machine, Slurm or Ray. Slurm's vocabulary stays in here."""
