"""Examine the nodes of an allocation, and name those that are broken, slow or different."""
