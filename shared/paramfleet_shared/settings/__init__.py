"""Settings: frozen dataclasses, filled from the command line, the environment and a file."""
