"""Which files a run's code is, their copy and their differences."""
