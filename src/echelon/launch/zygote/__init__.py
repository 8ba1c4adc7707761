"""The process that has imported torch, and the ranks forked from it."""
