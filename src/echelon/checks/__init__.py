"""What can be said of a request, a script or a machine before anything runs."""
