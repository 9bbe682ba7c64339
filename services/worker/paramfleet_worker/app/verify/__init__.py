"""``paramfleet verify``: jobs that are made to fail, and whose numbers are checked."""
