"""Find, wait for, stop, resume and remove runs."""
