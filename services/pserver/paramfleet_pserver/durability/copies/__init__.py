"""Which copies of a group there are, and the commands that followers still need."""
