"""The command line: handlers parse, call, print and return an exit code."""
