"""Saving, loading and gathering the state of tables."""
