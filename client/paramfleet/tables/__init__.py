"""A worker's view of tables: sparse rows, dense vectors, and the rules that step them."""
