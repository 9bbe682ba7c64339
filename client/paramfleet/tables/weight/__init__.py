"""The weight of an embedding: a parameter that stands for the rows of a table."""
