"""What the models of the zoo have in common: their base class, layers, metrics, optimizers."""
