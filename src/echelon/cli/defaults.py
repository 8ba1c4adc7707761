"""What commands assume unless they are told otherwise."""

from pathlib import Path

RUNS = Path("runs")
"""The directory of runs."""
