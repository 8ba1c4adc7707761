"""What every layer stands on: programs, units, host lists, run directories, events."""
