"""Jobs of Slurm: agents by srun, time limits and preemption by scontrol, a next job by sbatch."""
