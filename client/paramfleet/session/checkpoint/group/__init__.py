"""Checkpoints of jobs without servers: every worker writes its part into one folder."""
