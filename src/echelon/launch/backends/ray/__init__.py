"""A run's nodes on a Ray cluster."""
