"""Settings, read once from the command line and the environment."""
