"""Which rows of a table are in memory, and which of them leave it next.

A row that comes enters a window, which rows leave in the order in which they came. At its end a
row gets a place among the main rows, if there is one, or if it was used more often than the row
that would go for it: that is one that wasn't used in a turn of a clock's hand. What was used
once in a long time leaves after a while, then, and drives no row out that is used often; and a
row that was read for a step is still there when the step's gradient comes.

Nothing here reads or writes a row. S = slots of rows, n = rows of a call.
"""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.disk.kernels.policies import (
    BLOCK,
    LINES,
    counts_of,
    halve,
    note_used,
    sweep_hand,
)
from paramfleet_shared.tables.memory.reservation import reserve

__all__ = ["Residency"]

WINDOW_SHARE = 0.1
"""Of the rows in memory, that are in the window when memory is full."""

_AGES_AFTER = 10
"""Counts are halved after so many times as many uses as there are main rows."""

_LEAST_QUEUED = 1 << 16

_LEAST_WIDTH = 1 << 12
"""Of a line of the sketch."""


class Residency:
    """The rows in memory, by slot. One thread uses it.

    Args:
        max_slots: No slot is as high.
    """

    def __init__(self, max_slots: int) -> None:
        self._is_in_window = reserve(max_slots, np.bool_)
        self._is_main = reserve(max_slots, np.uint8)
        self._was_used = reserve(max_slots, np.uint8)
        """Which main rows were used since the hand came by last. [S]"""
        self._entries = reserve(max_slots, np.int64)
        """The number of the latest entry of each slot into the window. [S]"""
        self._window: deque[tuple[NDArray[np.int64], int]] = deque()
        """Slots in the order in which they entered, and the number of the first entry."""
        self.num_entered = 0
        """Rows that have come, of all that ever came."""
        self._following = 0
        """The number of the next entry."""
        self._num_queued = 0
        """Slots in the queue, those that are in the window no more among them."""
        self._num_slots = 0
        self._hand = 0
        self.num_window = 0
        self.num_main = 0
        self._sketch = _sketch(_LEAST_WIDTH)
        self._num_counted = 0
        self._kept = np.zeros(0, np.uint8)

    @property
    def num_rows(self) -> int:
        """Return how many rows are in memory."""
        return self.num_window + self.num_main

    def enter(self, slots: NDArray[np.int64]) -> None:
        """Note rows that came: int64 [n], each once, of slots that had none."""
        if not slots.size:
            return
        self._is_in_window[slots] = True
        self._was_used[slots] = 0
        self._queue(slots)
        self.num_entered += slots.size
        self.num_window += slots.size
        if self._num_queued > max(_LEAST_QUEUED, 2 * self.num_window):
            self._forget_gone()
        self._num_slots = max(self._num_slots, int(slots.max()) + 1)

    def drop(self, slots: NDArray[np.int64]) -> None:
        """Note rows that are there no more: int64 [n], each once."""
        self.num_window -= int(self._is_in_window[slots].sum())
        self.num_main -= int(self._is_main[slots].sum())
        self._is_in_window[slots] = False
        self._is_main[slots] = 0

    def touch(
        self,
        keys: NDArray[np.uint64],
        slots: NDArray[np.int64],
        flags: tuple[NDArray[np.uint8], int, NDArray[np.uint8]],
    ) -> tuple[NDArray[np.uint64], int, int]:
        """Note rows that are used.

        Args:
            keys: uint64 [n].
            slots: int64 [n], -1 for those that aren't in memory.
            flags: Of the slots: uint8 [S]; which bits of those that are used stay; and which
                wait for their use, and don't any more then: uint8 [S], or [0] if none does.

        Returns:
            The keys that aren't in memory, uint64 [m], how many rows have waited, and how many
            of those ``BROUGHT``.
        """
        missing = np.empty(keys.size, np.uint64)
        num, counted, waited, brought = note_used(
            keys, slots, self._was_used, self._sketch, flags, missing
        )
        self._num_counted += counted
        if self._num_counted >= _AGES_AFTER * max(self.num_rows, self._width // 4):
            halve(self._sketch)
            self._num_counted //= 2
        return missing[:num], waited, brought

    def keep(self, kept: NDArray[np.uint8]) -> None:
        """Let rows stay while others can leave for them: uint8 [S]; [0] lets none stay."""
        self._kept = kept

    def leaving(self, num: int, most_main: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the slots of rows that leave memory now: int64 [num].

        Args:
            num: How many; fewer leave if there are fewer.
            most_main: Places among the main rows.
            keys: Of each slot: uint64 [S].
        """
        self._fit_sketch(most_main)
        num = min(num, self.num_rows)
        # Memory may be smaller than it was: main rows would keep the place of the window.
        surplus = self._victims(min(num, max(0, self.num_main - most_main)))
        num -= surplus.size
        free = max(0, most_main - self.num_main)
        candidates = self._oldest(num + free)
        self.num_window -= candidates.size
        self._is_in_window[candidates] = False
        promoted, rest = candidates[:free], self._kept_first(candidates[free:])
        self._make_main(promoted)
        victims = self._victims(min(num, self.num_main))
        pairs = max(0, rest.size + victims.size - num)
        mine, rivals = rest[:pairs], victims[:pairs]
        stays = self._used_as_often(keys[rivals], keys[mine])
        stays = (stays | self._are_kept(rivals)) & ~self._are_kept(mine)
        self._make_main(np.where(stays, rivals, mine))
        # Rows without a rival leave: the window was short, or memory is smaller now.
        leaving = np.where(stays, mine, rivals), rest[pairs:], victims[pairs:]
        return np.concatenate([surplus, *leaving])

    def _oldest(self, num: int) -> NDArray[np.int64]:
        """Return the slots that entered the window first: int64, ``num`` or as many there are.

        They are no longer in the queue.
        """
        found: list[NDArray[np.int64]] = []
        while num and self._window:
            slots, first = self._window.popleft()
            self._num_queued -= slots.size
            at = np.flatnonzero(self._are_there(slots, first))
            if at.size > num:
                rest = int(at[num])
                self._window.appendleft((slots[rest:], first + rest))
                self._num_queued += slots.size - rest
                at = at[:num]
            found.append(slots[at])
            num -= at.size
        return np.concatenate([np.empty(0, np.int64), *found])

    def _queue(self, slots: NDArray[np.int64]) -> None:
        """Put slots at the end of the queue."""
        first, self._following = self._following, self._following + slots.size
        self._entries[slots] = np.arange(first, self._following)
        self._window.append((slots, first))
        self._num_queued += slots.size

    def _are_there(self, slots: NDArray[np.int64], first: int) -> NDArray[np.bool_]:
        """Return which slots of a part of the queue are in the window, by this entry."""
        numbers = first + np.arange(slots.size)
        are_there: NDArray[np.bool_] = self._is_in_window[slots] & (
            self._entries[slots] == numbers
        )
        return are_there

    def _forget_gone(self) -> None:
        """Leave out of the queue what left the window otherwise: removed rows."""
        parts = [(slots, self._are_there(slots, first)) for slots, first in self._window]
        self._window.clear()
        self._num_queued = 0
        self._queue(np.concatenate([slots[there] for slots, there in parts]))

    def _kept_first(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return slots, those that are kept before the others: the last ones have no rival."""
        is_kept = self._are_kept(slots)
        return np.concatenate([slots[is_kept], slots[~is_kept]])

    def _are_kept(self, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        if not self._kept.size:
            return np.zeros(slots.size, np.bool_)
        are_kept: NDArray[np.bool_] = self._kept[slots] != 0
        return are_kept

    def _make_main(self, slots: NDArray[np.int64]) -> None:
        self._is_main[slots] = 1
        self._was_used[slots] = 0
        self._is_in_window[slots] = False
        self.num_main += slots.size

    def _victims(self, num: int) -> NDArray[np.int64]:
        """Take the main rows that weren't used for the longest turn: int64 [num]."""
        victims = np.empty(num, np.int64)
        if num:
            arrays = (self._was_used, self._is_main, self._kept)
            bits, live, kept = (each[: self._num_slots] for each in arrays)
            self._hand = sweep_hand(bits, live, kept, self._hand, victims)
            self.num_main -= num
        return victims

    def _used_as_often(
        self, mine: NDArray[np.uint64], others: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        """Return which of some keys were used at least as often as those beside them."""
        counts, rivals = np.empty(mine.size, np.uint8), np.empty(mine.size, np.uint8)
        counts_of(self._sketch, mine, counts)
        counts_of(self._sketch, others, rivals)
        return counts >= rivals

    def _fit_sketch(self, num_main: int) -> None:
        """Have a sketch that is wide enough; a new one knows nothing."""
        width = 1 << max(0, 2 * num_main - 1).bit_length()
        if width > self._width:
            self._sketch = _sketch(width)
            self._num_counted = 0

    @property
    def _width(self) -> int:
        return self._sketch.size // LINES


def _sketch(width: int) -> NDArray[np.uint8]:
    """Return counts of nothing as yet, in lines of so many, a power of 2."""
    return np.zeros((LINES * width // BLOCK, BLOCK), np.uint8)
