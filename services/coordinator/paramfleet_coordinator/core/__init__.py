"""Decisions of the coordinator: plain state, no loop, no socket, no clock."""
