"""The files of a checkpoint: manifest, ids, rows, the state of the model."""
