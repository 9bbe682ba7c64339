"""The table engine: rows addressed by 64-bit ids, dense ranges, and their optimizers."""
