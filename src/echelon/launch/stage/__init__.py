"""Copies of the ranks' environment or image on each node's own disk."""
