"""Which rows go: chosen by what they are worth, and removed."""
