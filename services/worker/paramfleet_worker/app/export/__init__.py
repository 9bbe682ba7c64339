"""``paramfleet export``: one table of a checkpoint in a format that other programs read."""
