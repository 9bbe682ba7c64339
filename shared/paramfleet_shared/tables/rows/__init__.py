"""What a row of a table consists of."""
