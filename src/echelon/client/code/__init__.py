"""The files of a run's code, their copy and their differences."""
