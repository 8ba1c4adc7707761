"""A login host by ssh: call a command there, send a project, fetch files."""
