"""The optimizers that tables are trained with: one record in one module for each."""
