"""A conversation: what the last questions were about, commands, and sessions that are kept."""
