"""The user's settings: a file, environment variables, flags."""
