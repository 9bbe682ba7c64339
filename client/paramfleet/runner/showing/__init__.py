"""What a run shows and says of itself: lines or a table, where the time went, its result."""
