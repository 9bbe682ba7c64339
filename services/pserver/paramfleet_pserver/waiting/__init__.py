"""Requests that wait: for a step, for a worker, for a checkpoint."""
