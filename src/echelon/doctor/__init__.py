"""Asks for nodes to be examined, and shows what was found."""
