"""What runs inside an allocation: one controller, an agent and a zygote per node, and the ranks.

Standard library alone, and nothing above `world` and `spec`: a copy of this package is laid into
the run's directory and runs in the user's own Python on the nodes.
"""
