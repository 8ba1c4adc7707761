"""Functions, results, runs and sweeps from Python."""
