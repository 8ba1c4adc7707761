"""Where runs execute: this machine, Slurm or Ray. Slurm's terms are confined to this package."""
