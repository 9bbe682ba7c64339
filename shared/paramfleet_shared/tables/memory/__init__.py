"""Memory for tables: reserved at once, taken when it is used."""
