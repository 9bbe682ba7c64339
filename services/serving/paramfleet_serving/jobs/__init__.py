"""A running job as one that reads its changes has it."""
