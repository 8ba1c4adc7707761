"""What can be known before a job is queued: of scripts (`lint`), and of nodes (`doctor`)."""
