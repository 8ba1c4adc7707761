"""The run directory: where command line, job and dashboard meet, and nowhere else."""
