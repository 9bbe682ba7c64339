"""How many rows of a batch aren't in memory, where memory has a place for some rows alone.

Batches have independent references. A batch looks for each of its rows once, so a row counts
once in it, however often it is referenced.
"""

import numpy as np
from numpy.typing import NDArray

from paramfleet_worker.core.planning.popularity import Popularity

__all__ = ["clock_misses", "hottest_misses", "unique_rows"]

_HALVINGS = 100
_LONGEST = 1e18
"""Batches for a turn of a clock's hand, at most."""


def unique_rows(popularity: Popularity, num_references: float) -> float:
    """Return how many rows a batch has."""
    return popularity.expected(popularity.in_batch(num_references))


def hottest_misses(popularity: Popularity, num_references: float, capacity: float) -> float:
    """Return the misses of a batch if the rows that are used most stay in memory for ever.

    What no policy is better than, where each reference is drawn alone: the bound of those that
    count uses, as TinyLFU.
    """
    cold = 1.0 - popularity.hottest(capacity)
    return popularity.expected(cold * popularity.in_batch(num_references))


def clock_misses(popularity: Popularity, num_references: float, capacity: float) -> float:
    """Return the misses of a batch if a clock chooses the rows that leave memory.

    By the characteristic time, as Che's approximation of LRU: the hand's turn takes the same
    number of batches T for each row, and T is the one at which the rows that are in memory are
    as many as there are places.

    Args:
        popularity: Of the rows.
        num_references: Of a batch.
        capacity: Places.
    """
    chances = popularity.in_batch(num_references)
    if capacity >= popularity.counts.sum():
        return 0.0
    if capacity <= 0:
        return popularity.expected(chances)
    uses = num_references * popularity.shares
    low, high = 0.0, float(np.log(_LONGEST))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        fills = popularity.expected(_in_memory(chances, uses, float(np.expm1(middle))))
        low, high = (middle, high) if fills < capacity else (low, middle)
    held = _in_memory(chances, uses, float(np.expm1(low)))
    return popularity.expected(chances * (1.0 - held))


def _in_memory(
    chances: NDArray[np.float64], uses: NDArray[np.float64], turn: float
) -> NDArray[np.float64]:
    """Return the chance of a row of each class to be in memory.

    A row comes in when it is missed, and leaves when no batch of a turn has it: it stays for
    ``turn / unused`` batches on average, and is away for ``1 / chance``.

    Args:
        chances: float64 [C]: to be in a batch.
        uses: float64 [C]: references in a batch.
        turn: Batches in which the hand comes by once.
    """
    unused = np.exp(-turn * uses)
    stays = turn * chances
    held: NDArray[np.float64] = stays / (stays + unused)
    return held
