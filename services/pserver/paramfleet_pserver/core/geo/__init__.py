"""What GEO keeps of its workers: rows that they wait for, and who changed them."""
