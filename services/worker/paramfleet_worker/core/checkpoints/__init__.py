"""Decisions about checkpoints on disk: which is the newest, and what differs between two."""
