"""One body per command: what the commands do with several rooms at once."""
