"""Looks at the nodes of an allocation, and names those that are broken, slow or odd."""
