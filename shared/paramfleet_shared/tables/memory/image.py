"""A shard's rows as they were at one moment, copied later, some at a time.

Taking an image copies nothing. From then on a row that is about to change, and that hasn't been
copied as yet, is put aside first. So others go on while rows are copied, and the cost is one
copy of each row that changes meanwhile.

P = places of rows when the image was taken, F = floats of a row, n = rows of a call.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.errors.tables import TableMemoryError
from paramfleet_shared.tables.kernels.rows import choose_places, gather
from paramfleet_shared.tables.memory.reservation import reserve
from paramfleet_shared.tables.memory.slot_index import Growth

if TYPE_CHECKING:
    from paramfleet_shared.tables.memory.changes import Changed

__all__ = ["ImageRows", "IndexCounts", "RowSpace", "ShardImage"]

GRANTED_BYTES = 16 << 20
"""Of rows put aside, between two questions for memory."""


class RowSpace(NamedTuple):
    """Memory for rows of a table with D values and W states, filled from the front."""

    ids: NDArray[np.int64]
    """int64 [N]"""
    values: NDArray[np.float32]
    """float32 [N, D]"""
    states: NDArray[np.float32]
    """float32 [N, W]"""

    @property
    def num_bytes(self) -> int:
        """Return how many it takes."""
        return sum(array.nbytes for array in self)

    def part(self, start: int, stop: int | None = None) -> "RowSpace":
        """Return the memory of some of the rows."""
        where = slice(start, stop)
        return RowSpace(self.ids[where], self.values[where], self.states[where])


class ImageRows(NamedTuple):
    """Where the rows are that were in some places, in order of them."""

    places: slice | NDArray[np.int64]
    """All, or int64 [n]."""
    num_rows: int
    """n"""
    aside: NDArray[np.int64]
    """Which of them, from 0, changed since and were put aside before: int64 [m]."""
    ids: NDArray[np.int64]
    """Of these: int64 [m]."""
    floats: NDArray[np.float32]
    """Of these, value and states, as they were kept: float32 [m, F]."""


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
        self._numbers = np.zeros(num_places, np.int32)
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
        self.changed: Changed | None = None
        """What changed since an earlier save; None if that isn't known."""
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
        if self.error is not None:
            return
        chosen = np.empty_like(places)
        count = choose_places(
            places, self._numbers, self._is_new, (self._next, self.num_kept), chosen
        )
        chosen, stop = chosen[:count], self.num_kept + count
        if not count:
            return
        if not self._make_room(stop):
            self._numbers[chosen] = 0
            return
        where = slice(self.num_kept, stop)
        self._ids[where] = ids[chosen]
        kept = self._floats[where].reshape(-1)
        gather(floats.reshape(-1), self._width, chosen, kept, self._width)
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
            ids: Of the shard, by place.
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
        live: slice | NDArray[np.int64],
        *,
        only: NDArray[np.bool_] | None = None,
    ) -> ImageRows:
        """Return where the rows are that were in some places; a place is read once.

        The caller copies them before it changes any.

        Args:
            start: First place; that after the last one that was read.
            stop: The one after the last; at most P.
            live: Which of these places have a row now.
            only: Which of them are wanted, bool [stop - start]; all if not given.

        Raises:
            TableMemoryError: if there was no memory for rows that changed.
        """
        where = slice(start, stop)
        is_there = self._were_there(where, live)
        if only is not None:
            is_there &= only
        self._next = stop
        places: slice | NDArray[np.int64] = where
        if not is_there.all():
            places = start + np.flatnonzero(is_there)
        numbers = self._numbers[places]
        aside = np.flatnonzero(numbers)
        kept = numbers[aside] - 1
        return ImageRows(places, len(numbers), aside, self._ids[kept], self._floats[kept])

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
        is_there |= self._numbers[where] > 0
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
            self._drop_kept()
            return False
        self._num_granted += more
        return True

    def _drop_kept(self) -> None:
        """Give the memory of rows back that were put aside: nobody reads them any more."""
        self._ids, self._floats = self._ids[:0].copy(), self._floats[:0].copy()
