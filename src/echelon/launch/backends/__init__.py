"""How agents get onto nodes, and what the allocation says."""
