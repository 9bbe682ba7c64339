"""Requests of a worker to all pservers of its job, and their answers."""
