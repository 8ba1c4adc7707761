"""What the processes of a job say to each other: frames, messages, variables, shared memory."""
