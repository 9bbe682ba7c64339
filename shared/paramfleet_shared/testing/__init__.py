"""For tests alone: no production module imports this."""
