"""The agent, one process per node: local workers, zygote client, node check, guard."""
