"""A shard's rows as they were at one moment, copied later, some at a time.

Taking an image copies nothing. From then on a row that is about to change, and that hasn't been
copied as yet, is put aside first. So others go on while rows are copied, and the cost is one
copy of each row that changes meanwhile.

P = places of rows when the image was taken, F = floats of a row, n = rows of a call.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.errors.tables import TableMemoryError
from paramfleet_shared.tables.memory.reservation import reserve
from paramfleet_shared.tables.memory.slot_index import Growth

__all__ = ["ImageRows", "IndexCounts", "ShardImage"]

GRANTED_BYTES = 16 << 20
"""Of rows put aside, between two questions for memory."""


class ImageRows(NamedTuple):
    """Rows of an image, in order of their places."""

    ids: NDArray[np.int64]
    """int64 [n]"""
    floats: NDArray[np.float32]
    """float32 [n, F]: value and states, as they are kept."""


class IndexCounts(NamedTuple):
    """What else decides which places later rows get, and how their values are rounded."""

    free: NDArray[np.int64]
    """Places that new rows take, the last one first."""
    num_turns: int
    num_pushes: int


class ShardImage:
    """What is put aside of a shard. Its owner's thread uses it.

    Args:
        num_places: P.
        width: F.
        growth: Asked before there is room for more rows; None lets all come.
        counts: Of the shard's index.
    """

    def __init__(
        self, num_places: int, width: int, growth: Growth | None, counts: "IndexCounts"
    ) -> None:
        self.num_places = num_places
        self.counts = counts
        self._width = width
        self._growth = growth
        self._next = 0
        """Places before are copied."""
        self._kept = np.zeros(num_places, np.int32)
        """Of each place: which of those put aside it is, from 1; 0 for none. [P]"""
        self._is_new = np.zeros(num_places, np.bool_)
        """Which places had no row then, and have one now. [P]"""
        self._ids = reserve(num_places, np.int64)
        self._floats = reserve(num_places * width, np.float32).reshape(num_places, width)
        self._has_former = np.zeros(num_places, np.bool_)
        """Of which places the former id is kept. [P]"""
        self._former = reserve(num_places, np.int64)
        """That of a place whose row was removed, and that new rows may take since. [P]"""
        self._num_granted = 0
        self.num_kept = 0
        """Rows put aside."""
        self.error: TableMemoryError | None = None
        """Why nothing can be read of it any more: there was no memory."""

    def keep(
        self, places: NDArray[np.int64], ids: NDArray[np.int64], floats: NDArray[np.float32]
    ) -> None:
        """Put rows aside that are about to change.

        Args:
            places: int64 [n], those of rows that are there; -1 for none; some may be the same.
            ids: Of the shard, by place.
            floats: Of the shard [places, F].
        """
        places = places[(places >= self._next) & (places < self.num_places)]
        places = np.unique(places[(self._kept[places] == 0) & ~self._is_new[places]])
        stop = self.num_kept + len(places)
        if self.error is not None or not len(places) or not self._make_room(stop):
            return
        where = slice(self.num_kept, stop)
        self._ids[where], self._floats[where] = ids[places], floats[places]
        self._kept[places] = np.arange(where.start + 1, where.stop + 1)
        self.num_kept = stop

    def note_new(self, places: NDArray[np.int64]) -> None:
        """Note that rows were made in places, int64 [n], that had none."""
        self._is_new[places[places < self.num_places]] = True

    def keep_ids(self, places: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        """Keep the ids of places without a row, int64 [n], that new rows may take from now on.

        Args:
            places: They.
            ids: Of the shard, by place.
        """
        places = places[places < self.num_places]
        places = places[~self._has_former[places]]
        self._former[places] = ids[places]
        self._has_former[places] = True

    def places(
        self,
        start: int,
        stop: int,
        ids: NDArray[np.int64],
        live: slice | NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the ids that some places had, and which of them had a row.

        Args:
            start: First place: none that was read.
            stop: The one after the last; at most P.
            ids: As of ``read``.
            live: As of ``read``.

        Raises:
            TableMemoryError: if there was no memory for rows that changed.
        """
        where = slice(start, stop)
        is_there = self._were_there(where, live)
        found = np.where(self._has_former[where], self._former[where], ids[where])
        return found, is_there

    def read(
        self,
        start: int,
        stop: int,
        ids: NDArray[np.int64],
        floats: NDArray[np.float32],
        live: slice | NDArray[np.int64],
    ) -> ImageRows:
        """Return the rows that were in some places; a place is read once.

        Args:
            start: First place; that after the last one that was read.
            stop: The one after the last; at most P.
            ids: Of the shard, by place.
            floats: Of the shard [places, F].
            live: Which of these places have a row now.

        Raises:
            TableMemoryError: if there was no memory for rows that changed.
        """
        where = slice(start, stop)
        is_there = self._were_there(where, live)
        found_ids, found = ids[where].copy(), floats[where].copy()
        aside = np.flatnonzero(self._kept[where])
        numbers = self._kept[where][aside] - 1
        found_ids[aside], found[aside] = self._ids[numbers], self._floats[numbers]
        self._next = stop
        if is_there.all():
            return ImageRows(found_ids, found)
        return ImageRows(found_ids[is_there], found[is_there])

    def _were_there(self, where: slice, live: slice | NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of some places had a row.

        Raises:
            TableMemoryError: if there was no memory for rows that changed.
        """
        if self.error is not None:
            raise self.error
        is_there = np.zeros(where.stop - where.start, np.bool_)
        if isinstance(live, slice):
            is_there[live.start - where.start : live.stop - where.start] = True
        else:
            is_there[live - where.start] = True
        is_there &= ~self._is_new[where]
        is_there |= self._kept[where] > 0
        return is_there

    def _make_room(self, num: int) -> bool:
        """Return whether there is memory for ``num`` rows to be put aside."""
        more = max(num - self._num_granted, GRANTED_BYTES // (8 + 4 * self._width))
        if num <= self._num_granted or self._growth is None:
            return True
        try:
            self._growth.check(more)
        except TableMemoryError as error:
            self.error = error
            self._ids, self._floats = self._ids[:0].copy(), self._floats[:0].copy()
            return False
        self._num_granted += more
        return True
