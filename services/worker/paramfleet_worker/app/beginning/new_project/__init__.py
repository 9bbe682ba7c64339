"""``paramfleet new``: a small project to begin with."""
