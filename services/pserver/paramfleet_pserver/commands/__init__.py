"""What changes the state of a training: commands as values, and what they do."""
