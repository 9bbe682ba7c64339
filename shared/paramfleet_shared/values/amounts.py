"""Amounts of memory, and how they are said."""

from typing import NamedTuple

__all__ = ["Memory", "gigabytes"]


class Memory(NamedTuple):
    """Bytes of memory."""

    total: int
    """What the machine has, or the limit of a group that this process is in."""
    free: int
    """What can be taken of it now, the system's caches included."""


def gigabytes(num_bytes: float) -> str:
    """Return a number of bytes as people read it, in GB of 10^9 bytes."""
    return f"{num_bytes / 1e9:.1f} GB"
