"""The process that measures a node."""
