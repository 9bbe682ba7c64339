"""Which cold rows get a place in memory when they are used, and which rows leave it.

Nothing here reads or writes a row: a policy is told which slots were used and which keys were
missed, and says which of these get a place and whose. A row that gets none is used where it was
read to, and goes back to disk.

A clock gives every missed row a place, in turn for one that wasn't used since its hand came by
last. Most rows of real data are used once in a long time, and drive others out that are used
more often. So ``SecondTouch`` gives a place to a row that is missed twice in a while, and
``TinyLfu`` to one that was used more often than the row that would go for it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.disk.kernels.policies import (
    LINES,
    count_seen,
    counts_of,
    halve,
    note_seen,
    sweep_hand,
)

__all__ = ["ClockPolicy", "Decision", "SecondTouch", "TinyLfu"]

_FULL_SHARE = 4
"""The filter is emptied when a part of one in so many of its places is taken."""

_AGES_AFTER = 10
"""Counts are halved after so many times as many uses as there are slots."""


class Decision(NamedTuple):
    """What happens to missed rows."""

    admitted: NDArray[np.bool_]
    """bool [n]: which of them get a place in memory."""
    victims: NDArray[np.int64]
    """int64 [v]: the slots whose rows leave it for them; their rows must be kept elsewhere."""


class ClockPolicy:
    """Every missed row gets a place; rows leave that weren't used in a turn of the hand.

    Args:
        capacity: Slots.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._bits = np.zeros(capacity, np.uint8)
        """Which slots were used since the hand came by."""
        self._live = np.zeros(capacity, np.uint8)
        self._hand = 0
        self.num_live = 0

    def touch(self, keys: NDArray[np.uint64], slots: NDArray[np.int64]) -> None:
        """Note the rows of a batch.

        Args:
            keys: uint64 [n], each once, those that are missed among them.
            slots: int64 [n]: the slot of each, or -1.
        """
        self._count(keys)
        self._bits[slots[slots >= 0]] = 1

    def decide(self, keys: NDArray[np.uint64], keys_at: NDArray[np.uint64]) -> Decision:
        """Say what happens to missed rows.

        Args:
            keys: uint64 [n], each once; of a batch that was noted.
            keys_at: uint64 [capacity]: the key of each slot that is taken.
        """
        wanted = self._wanted(keys)
        num_free = self.capacity - self.num_live
        over = np.flatnonzero(wanted)[num_free:]
        # A batch that misses more than all slots can't have a place for each.
        wanted[over[self.num_live :]] = False
        over = over[: self.num_live]
        victims = np.empty(over.size, np.int64)
        self._hand = sweep_hand(self._bits, self._live, self._hand, victims)
        stays = self._stays(keys[over], keys_at[victims])
        wanted[over[stays]] = False
        self._live[victims[stays]] = 1
        self.num_live -= int((~stays).sum())
        return Decision(wanted, victims[~stays])

    def place(self, slots: NDArray[np.int64]) -> None:
        """Note which slots have got rows: int64 [n]; those of a decision, or others."""
        self._live[slots] = 1
        self._bits[slots] = 0
        self.num_live += slots.size

    def free(self, slots: NDArray[np.int64]) -> None:
        """Note which slots have none any more, but for victims: int64 [n]."""
        self._live[slots] = 0
        self.num_live -= slots.size

    def _count(self, keys: NDArray[np.uint64]) -> None:
        """Note that keys were used."""

    def _wanted(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which missed rows should get a place, whoever leaves it."""
        return np.ones(keys.size, np.bool_)

    def _stays(
        self, keys: NDArray[np.uint64], victims: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        """Return which victims should rather stay than leave for the key beside them."""
        return np.zeros(min(keys.size, victims.size), np.bool_)


class SecondTouch(ClockPolicy):
    """While memory is full, a row gets a place when it is missed twice in a while.

    Args:
        capacity: Slots.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._door = np.zeros(1 << max(6, (2 * capacity - 1).bit_length()), np.uint8)
        self._num_noted = 0

    def _wanted(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which missed rows were missed lately, or find a free place."""
        wanted = np.ones(keys.size, np.bool_)
        rest = keys[self.capacity - self.num_live :]
        was_seen = np.empty(rest.size, np.bool_)
        self._num_noted += note_seen(self._door, rest, was_seen)
        if self._num_noted > self._door.size // _FULL_SHARE:
            self._door[:] = 0
            self._num_noted = 0
        wanted[keys.size - rest.size :] = was_seen
        return wanted


class TinyLfu(ClockPolicy):
    """While memory is full, a row gets a place if it was used more often than who would go.

    Args:
        capacity: Slots.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        width = 1 << max(6, (2 * capacity - 1).bit_length())
        self._sketch = np.zeros((LINES, width), np.uint8)
        self._num_counted = 0

    def _count(self, keys: NDArray[np.uint64]) -> None:
        """Count uses; what is long ago counts less and less."""
        count_seen(self._sketch, keys)
        self._num_counted += keys.size
        if self._num_counted >= _AGES_AFTER * self.capacity:
            halve(self._sketch)
            self._num_counted //= 2

    def _stays(
        self, keys: NDArray[np.uint64], victims: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        """Return which victims were used at least as often."""
        mine, theirs = np.empty(keys.size, np.uint8), np.empty(keys.size, np.uint8)
        counts_of(self._sketch, keys, mine)
        counts_of(self._sketch, victims, theirs)
        return theirs >= mine
