"""The formats in which numbers travel: one record in one module for each."""
