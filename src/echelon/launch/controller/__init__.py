"""One process per attempt: membership, generations, stopping, retry decision, conclusion."""
