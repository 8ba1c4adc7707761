"""The request: its keys, how values are read and merged, and which ones conflict."""
