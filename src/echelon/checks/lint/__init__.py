"""Reads job scripts and the Python they start, and says what will go wrong when they run."""
