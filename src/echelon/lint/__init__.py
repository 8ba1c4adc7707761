"""Static checks of job scripts and the Python scripts they start."""
