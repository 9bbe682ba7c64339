"""Processes that are started here and never outlive their starter."""
