"""What the ledger's changes are, and what they have to add up to."""

from collections.abc import Sequence

__all__ = [
    "COMMON",
    "OWN",
    "PLACES",
    "common_ids",
    "factor_of",
    "own_ids",
    "own_place",
    "scale_of",
    "step_ids",
    "sum_of",
]

OWN = 8
"""Rows, and dense values, that one worker alone changes in each of its steps."""

COMMON = 12
"""Rows, and dense values, that all workers change in each step."""

PLACES = 2
"""Dense values of one step: one with each pserver, where they are divided among two."""

_IDS_A_STEP = 3


def factor_of(rank: int, step: int) -> int:
    """Return the number that a worker adds in a step."""
    return 1 + (7 * step + 3 * rank) % 5


def scale_of(mode: str, num_workers: int) -> float:
    """Return what part of it counts: sync and LocalSGD take the mean over the workers."""
    return 1 / num_workers if mode in {"sync", "localsgd"} else 1.0


def sum_of(rank: int, steps: int) -> int:
    """Return what a worker has added after so many steps."""
    return sum(factor_of(rank, step) for step in range(1, steps + 1))


def common_ids() -> Sequence[int]:
    """Return the rows that all workers change."""
    return range(COMMON)


def own_ids(rank: int) -> Sequence[int]:
    """Return the rows that a worker alone changes."""
    return range(1000 * (rank + 1), 1000 * (rank + 1) + OWN)


def step_ids(rank: int, step: int) -> Sequence[int]:
    """Return the rows that one step of a worker alone changes."""
    first = 1_000_000 * (rank + 1) + _IDS_A_STEP * step
    return range(first, first + _IDS_A_STEP)


def own_place(rank: int, step: int, steps: int) -> int:
    """Return where the dense values of one step of a worker are, in each of the ``PLACES``."""
    return rank * steps + step - 1
