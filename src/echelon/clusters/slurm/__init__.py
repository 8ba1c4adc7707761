"""Runs as jobs of Slurm."""
