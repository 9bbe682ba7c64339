"""Decisions of the pserver: plain state, no loop, no socket, no clock."""
