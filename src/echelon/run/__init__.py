"""The run directory: the only interface between command line, job and dashboard."""
