"""Models that a command or an example can name, and how their files are read."""
