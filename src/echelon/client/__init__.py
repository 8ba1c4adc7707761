"""One path from a request to a run, and views of runs, for the command line and for Python."""
