"""The command line: what it asks for, shows and says."""
