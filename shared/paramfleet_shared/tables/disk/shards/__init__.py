"""Shards of tables with rows on disk: what is in memory, and how all rows are read."""
