"""A cluster's login host, reached with the user's own OpenSSH."""
