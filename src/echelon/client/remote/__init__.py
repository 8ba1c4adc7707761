"""Execute commands, send projects and fetch files on a login host by ssh."""
