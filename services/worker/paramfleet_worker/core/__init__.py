"""Decisions of the worker: plain state, no loop, no socket, no clock."""
