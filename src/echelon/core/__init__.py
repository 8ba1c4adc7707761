"""Basics that all layers use: programs, Slurm, units, host lists, safe files."""
