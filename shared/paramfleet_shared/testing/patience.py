"""How late a busy machine may be."""

LATE_S = 20.0
"""Seconds that other work on the machine may add to a time that is promised.

Exact times are tested where time is an argument: in the cores. A test with real sockets or
processes asks only for less than what a broken promise would take, which is a hang.
"""
