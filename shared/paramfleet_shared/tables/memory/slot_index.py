"""The index of rows that a process holds: which slot each id has, and which are free.

Who keeps rows beside it has them by slot.
"""

import contextlib
import secrets
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.errors.tables import TableMemoryError
from paramfleet_shared.tables.kernels import rows as row_kernels
from paramfleet_shared.tables.kernels.basics.compiled import as_input
from paramfleet_shared.tables.kernels.basics.lanes import LANES
from paramfleet_shared.tables.kernels.index import (
    DONE,
    FREE,
    GROUP,
    LEAD,
    MOVING_ENTRIES,
    PAGE_LINES,
    PAGES,
    ROWS,
    TURNS,
    USED,
    Index,
    pages_for,
)
from paramfleet_shared.tables.kernels.seek import find_slots, remove_keys
from paramfleet_shared.tables.memory.prefault import Lookahead
from paramfleet_shared.tables.memory.reservation import (
    DEFAULT_MAX_ROWS,
    CapacityError,
    reserve,
)
from paramfleet_shared.tables.memory.shapes import check_array
from paramfleet_shared.values.sorting import each_once

__all__ = ["Growth", "Mark", "SlotIndex"]

LINE_BYTES = 64
"""Of the index."""

SHARE_AHEAD, LEAST_AHEAD_BYTES = 32, 16 << 20
"""How much a table may grow between two questions for memory: a part of what it has, and so
many bytes at least."""


class Growth(Protocol):
    """Says whether there is memory for more rows."""

    @property
    def row_bytes(self) -> int:
        """Return what a row takes, its part of the index included."""
        ...

    def check(self, num_rows: int) -> None:
        """Pass if so many more rows may come.

        Raises:
            TableMemoryError: if there is no memory for them.
        """
        ...


class Mark(NamedTuple):
    """Which slots had been given out at some time."""

    used: int
    """How many had been used ever."""
    free: int
    """How many of them were free again."""


class SlotIndex:
    """Numbers ids 0, 1, 2... in the order they come. One thread owns it.

    The number of an id that was removed is another's once it is released. Growth is spread over
    the calls that create: none pauses to rehash.

    Args:
        max_rows: Most ids it may hold; None for ``DEFAULT_MAX_ROWS``.
        table: Named by errors.
        shard: Named by errors.
        growth: Asked before there are more ids; None lets all come.
    """

    def __init__(
        self,
        *,
        max_rows: int | None = None,
        table: str = "",
        shard: int = 0,
        growth: Growth | None = None,
    ) -> None:
        self._growth = growth
        self.max_rows = DEFAULT_MAX_ROWS if max_rows is None else max_rows
        self._sure_rows = self.max_rows if growth is None else 0
        """So many ids may come without a question."""
        self.granted_rows = 0
        """And so many, by ``grant``, which is called on another thread than the owner's."""
        self._table = table
        self._shard = shard
        num_lines = pages_for(self.max_rows) * PAGE_LINES
        lines = reserve(num_lines * 8, np.uint64).reshape(num_lines, 8)
        self.arrays = Index(
            lines=lines,
            words=lines.view(np.uint32),
            ids=reserve(self.max_rows, np.uint64),
            free=reserve(self.max_rows, np.uint32),
            counts=np.array([0, 1, 2, 0, 0, 0, secrets.randbits(63)], np.int64),
            moving=np.empty((3, MOVING_ENTRIES), np.uint64),
            homes=np.zeros(GROUP + LEAD, np.int64),
            slots=np.zeros(GROUP + row_kernels.AHEAD, np.int64),
            missed=np.empty(GROUP + LANES, np.int64),
        )
        """For kernels that create rows beside ids."""
        self._lookaheads = (Lookahead(self.arrays.ids), Lookahead(lines))

    @property
    def num_rows(self) -> int:
        """Return how many ids have a slot."""
        return int(self.arrays.counts[ROWS])

    @property
    def num_slots(self) -> int:
        """Return how many slots were used ever; no slot is as high."""
        return int(self.arrays.counts[USED])

    @property
    def num_taken(self) -> int:
        """Return how many slots new ids can't have: an id's, or removed and not released."""
        return self.num_slots - int(self.arrays.counts[FREE])

    @property
    def num_turns(self) -> int:
        """Return how often an id was removed or took a slot that had been another's."""
        return int(self.arrays.counts[TURNS])

    @property
    def num_bytes(self) -> int:
        """Return the memory in use: 8 bytes a slot, 4 a free one, and the index's pages."""
        counts = self.arrays.counts
        pages = int(counts[PAGES]) * PAGE_LINES * LINE_BYTES
        return 8 * self.num_slots + 4 * int(counts[FREE]) + pages

    def ids(self) -> NDArray[np.int64]:
        """Return the id of each slot: int64 [num_slots], a view that stays valid.

        That of a slot without a row is one that was removed.
        """
        return self.arrays.ids[: self.num_slots].view(np.int64)

    def live(self, start: int, stop: int) -> slice | NDArray[np.int64]:
        """Return which slots of [start, stop) have an id, in order."""
        stop = min(stop, self.num_slots)
        if self.num_rows == self.num_slots:
            return slice(start, stop)
        slots = np.arange(start, stop)
        live: NDArray[np.int64] = slots[
            self.find(self.ids()[start:stop], create=False) == slots
        ]
        return live

    def free_slots(self) -> NDArray[np.int64]:
        """Return the slots that new ids take, the last one first: int64 [free]."""
        return self.arrays.free[: int(self.arrays.counts[FREE])].astype(np.int64)

    def restore(
        self,
        ids: NDArray[np.int64],
        is_live: NDArray[np.bool_],
        free: NDArray[np.int64],
        *,
        num_turns: int,
    ) -> None:
        """Number ids as another index did, in one that has none.

        Args:
            ids: As its ``ids()``: int64 [num_slots].
            is_live: Which of them have a slot: bool [num_slots].
            free: As its ``free_slots()``; below ``num_slots``, of ids without a slot.
            num_turns: Its count.

        Raises:
            RowShapeError: if ``ids`` are not int64 [n].
            CapacityError: if there is no room for them.
            TableMemoryError: if there is no memory for them.
            ValueError: if an id has two slots.
        """
        assert not self.num_slots, "nothing would be left of what it holds"
        known = ids.copy()
        known[~is_live] = _unlike(ids[is_live], int((~is_live).sum()))
        self.find(known, create=True)
        if self.num_slots != len(ids):
            message = "an id has two slots"
            raise ValueError(message)
        self.remove(known[~is_live])
        self.arrays.ids[: len(ids)] = ids.view(np.uint64)
        self.release(free)
        self.arrays.counts[TURNS] = num_turns

    def mark(self) -> Mark:
        """Return what ``made_since`` finds new slots by."""
        counts = self.arrays.counts
        return Mark(int(counts[USED]), int(counts[FREE]))

    def made_since(self, mark: Mark) -> list[slice | NDArray[np.int64]]:
        """Return the slots of ids that came since a mark; none may have been removed since."""
        now = self.mark()
        made: list[slice | NDArray[np.int64]] = []
        if now.used > mark.used:
            made.append(slice(mark.used, now.used))
        if now.free < mark.free:
            made.append(self.arrays.free[now.free : mark.free].astype(np.int64))
        return made

    def remove(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Forget ids, int64 [n]; return the slot that each had, -1 for none: int64 [n].

        New ids get these slots once they are released.

        Raises:
            RowShapeError: if ``ids`` are not int64 [n].
        """
        keys = self.keys_of(ids, create=False)
        slots = np.empty(keys.size, np.int64)
        remove_keys(self.arrays, keys, slots)
        return slots

    def release(self, slots: NDArray[np.int64]) -> None:
        """Give slots to new ids, the last one first.

        Args:
            slots: int64 [n], each once, of removed ids.
        """
        counts = self.arrays.counts
        first = int(counts[FREE])
        self.arrays.free[first : first + slots.size] = slots
        counts[FREE] = first + slots.size

    def find(
        self, ids: NDArray[np.int64], *, create: bool, out: NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        """Return the slot of each id: int64 [n].

        Args:
            ids: int64 [n]; an id may occur many times.
            create: Whether new ids get slots, free ones first; else theirs is -1.
            out: Where to put the slots, int64 [n] contiguous; None for a new array.

        Raises:
            RowShapeError: if ``ids`` are not int64 [n].
            CapacityError: if there is no room for the new ids.
        """
        keys = self.keys_of(ids, create=create)
        slots = np.empty(keys.size, np.int64) if out is None else out
        outcome = find_slots(self.arrays, keys, slots, create)
        if create:
            self.look_ahead()
        if outcome != DONE:
            raise self.full()
        return slots

    def look_ahead(self) -> None:
        """Have the pages made that the next ids will need; after each call that creates."""
        ids, lines = self._lookaheads
        ids.reach(8 * self.num_slots)
        lines.reach(int(self.arrays.counts[PAGES]) * PAGE_LINES * LINE_BYTES)

    def prefault(self, num_rows: int) -> None:
        """Make the pages now that so many ids need."""
        ids, lines = self._lookaheads
        ids.make_now(8 * num_rows)
        lines.make_now(pages_for(num_rows) * PAGE_LINES * LINE_BYTES)

    def keys_of(self, ids: NDArray[np.int64], *, create: bool) -> NDArray[np.uint64]:
        """Return ids as kernels take them.

        Args:
            ids: int64 [n].
            create: Whether the new ones will get slots.

        Raises:
            RowShapeError: if ``ids`` are not int64 [n].
            CapacityError: if there is no room for the new ids.
            TableMemoryError: if there is no memory for them.
        """
        check_array(ids, np.int64, (-1,), table=self._table)
        keys = as_input(ids, np.int64).view(np.uint64)
        wanted = self.num_taken + keys.size if create else 0
        if wanted > self._sure_rows and wanted > self.granted_rows:
            self._make_sure(keys)
        return keys

    def _make_sure(self, keys: NDArray[np.uint64]) -> None:
        """Pass if the new ones of some ids may come.

        Raises:
            CapacityError: if there is no room for them.
            TableMemoryError: if there is no memory for them.
        """
        growth, wanted = self._growth, self.num_taken + keys.size
        if growth is not None and wanted <= self.max_rows:
            with contextlib.suppress(TableMemoryError):  # few of these ids may be new
                self._sure_rows = self._check_ahead(growth, wanted)
                return
        if num_new := self._unknown(keys).size:
            self.check_capacity(self.num_taken + num_new)

    def grant(self, num_rows: int) -> bool:
        """Let ``num_rows`` slots be taken in all without a question, and some more.

        For a thread that decides before the owner acts; one at a time.

        Returns:
            False, with nothing changed, if there is no room or no memory for them.
        """
        if num_rows <= self.granted_rows:
            return True
        if num_rows > self.max_rows:
            return False
        if self._growth is None:
            self.granted_rows = self.max_rows
            return True
        try:
            self.granted_rows = self._check_ahead(self._growth, num_rows)
        except TableMemoryError:
            return False
        return True

    def check_capacity(self, num_rows: int) -> None:
        """Pass if ``num_rows`` slots may be taken in all.

        Raises:
            CapacityError: if there is no room for them.
            TableMemoryError: if there is no memory for them.
        """
        if num_rows > self.max_rows:
            raise self.full()
        if self._growth is not None and num_rows > self.granted_rows:
            self._check_memory(self._growth, num_rows)

    def unknown(self, ids: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return those of ids, int64 [n], that have no slot, each once and sorted."""
        return self._unknown(self.keys_of(ids, create=False))

    def _unknown(self, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        slots = np.empty(keys.size, np.int64)
        find_slots(self.arrays, keys, slots, False)  # noqa: FBT003  # kernels take no keywords
        return each_once(keys[slots < 0])

    def _check_ahead(self, growth: Growth, wanted: int) -> int:
        """Return how many ids may come if there is memory for ``wanted``, and some more.

        Raises:
            TableMemoryError: if there is no memory for them.
        """
        ahead = max(self.num_taken // SHARE_AHEAD, LEAST_AHEAD_BYTES // growth.row_bytes)
        most = min(self.max_rows, wanted + ahead)
        self._check_memory(growth, most)
        return most

    def _check_memory(self, growth: Growth, num_rows: int) -> None:
        """Pass if there is memory for ``num_rows`` slots; those used before have theirs.

        Raises:
            TableMemoryError: if there is none.
        """
        if num_rows > self.num_slots:
            growth.check(num_rows - self.num_slots)

    def full(self) -> CapacityError:
        """Return the error of an id that found no place."""
        return CapacityError(
            table=self._table, shard=self._shard, rows=self.num_taken, max_rows=self.max_rows
        )


def _unlike(ids: NDArray[np.int64], num: int) -> NDArray[np.int64]:
    """Return ``num`` ids, each once, that are none of ``ids``: int64 [num]."""
    candidates = np.arange(len(ids) + num, dtype=np.int64)
    return candidates[~np.isin(candidates, ids)][:num]
