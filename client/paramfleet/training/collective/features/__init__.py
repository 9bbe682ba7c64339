"""What a strategy adds to a collective step: optimizers, compression, precision, sharding."""
