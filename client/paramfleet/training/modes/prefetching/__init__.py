"""What is asked of pservers before a batch needs it."""
