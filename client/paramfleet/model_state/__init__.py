"""What a model knows beside its parameters, and how workers and checkpoints keep it equal."""
