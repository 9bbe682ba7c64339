"""A shard's rows as they were at one moment, where some are on disk: read in parts.

Rows move between memory and disk meanwhile, so they are read by their keys, and not by where
they are. First come those that were in memory or in the tier's log at that moment, whose keys
are noted then; after them the others, page by page: the tier keeps each key on its page until
the end. What changes before it is read is put aside first, as it was; what comes later is left
out.

A place is a number by which parts are named: one for each noted key, and ``PAGE_PLACES`` for
each page. W = words of a row, n = rows of a call.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet_shared.tables.disk.errors import TierChangedError
from paramfleet_shared.tables.disk.pages.rebuilding import Hold
from paramfleet_shared.tables.disk.parts import PAGE_PLACES
from paramfleet_shared.tables.disk.tier import DiskTier
from paramfleet_shared.tables.memory.image import IndexCounts, ShardImage
from paramfleet_shared.tables.memory.slot_index import Growth, SlotIndex
from paramfleet_shared.values.sorting import each_once

__all__ = ["Source", "TieredImage", "TieredPages"]

_LEAST_PAGES = 1024
"""With fewer, all keys are noted: a hold on a tier that begins to grow would break soon."""

_FIRST_ROWS = 1024

Look = Callable[[NDArray[np.uint64]], tuple[NDArray[np.bool_], NDArray[np.float32]]]
"""Returns which of keys [n] have a row, and the rows [n, W]: bool [n] and float32."""


class TieredPages(NamedTuple):
    """The pages of a tier whose keys aren't noted."""

    tier: DiskTier
    hold: Hold
    num: int

    @classmethod
    def of(cls, tier: DiskTier | None) -> "tuple[NDArray[np.uint64], TieredPages | None]":
        """Return the keys that are to be noted of a tier, and its pages, if they count."""
        if tier is None:
            return np.empty(0, np.uint64), None
        logged = tier.parts.logged_keys()
        if tier.parts.num_pages >= _LEAST_PAGES and tier.parts.num_merged:
            return logged, cls(tier, tier.parts.hold(), tier.parts.num_pages)
        on_pages, _ = tier.parts.on_pages(0, tier.parts.num_pages)
        return np.concatenate([logged, on_pages]), None


class Source(NamedTuple):
    """The shard that an image is of."""

    look: Look
    width: int
    """W"""
    growth: Growth | None
    """Asked before there is room for more rows; None lets all come."""
    counts: IndexCounts


class TieredImage(ShardImage):
    """What is put aside of a shard. Its owner's thread uses it.

    Args:
        known: The keys of rows in memory, and those that ``TieredPages.of`` says: uint64, in
            any order, some perhaps twice.
        pages: The pages with all others.
        source: The shard.
        keeps: Whether rows that change are put aside; else they are read as they are, or were.
    """

    def __init__(
        self,
        known: NDArray[np.uint64],
        pages: TieredPages | None,
        source: Source,
        *,
        keeps: bool = True,
    ) -> None:
        width = source.width
        super().__init__(0, width, source.growth, source.counts)
        self._known = each_once(known)
        self._pages = pages
        self._look = source.look
        self._keeps = keeps
        self.num_places = self._known.size + (0 if pages is None else PAGE_PLACES * pages.num)
        self._aside = SlotIndex(table="rows put aside")
        """Keys of rows that changed, and of those that came since."""
        self._rows = np.empty((_FIRST_ROWS, width), np.float32)
        """Those that were there, by the number that their key has in ``_aside``."""
        self._was_there = np.zeros(_FIRST_ROWS, np.bool_)
        self._places = np.zeros(_FIRST_ROWS, np.int64)
        """Of each key that is put aside: where it is read."""

    def note_changing(self, ids: NDArray[np.int64], rows: NDArray[np.float32]) -> None:
        """Put rows aside that are about to change.

        Args:
            ids: int64 [n], of rows that are there; some may be the same.
            rows: float32 [n, W].
        """
        keys, first = np.unique(ids.view(np.uint64), return_index=True)
        self._note(keys, rows[first], was_there=True)

    def note_made(self, ids: NDArray[np.int64]) -> None:
        """Note rows that were made: int64 [n], each once."""
        self._note(ids.view(np.uint64), None, was_there=False)

    def _note(
        self, keys: NDArray[np.uint64], rows: NDArray[np.float32] | None, *, was_there: bool
    ) -> None:
        if self.error is not None or not self._keeps:
            return
        places = self._places_of(keys)
        is_new = (places >= self._next) & (self._aside.find(_ids(keys), create=False) < 0)
        keys, places = keys[is_new], places[is_new]
        if not keys.size or not self._make_room(self.num_kept + keys.size):
            return
        slots = self._aside.find(_ids(keys), create=True)
        self.num_kept = self._aside.num_rows
        self._grow(self.num_kept)
        self._was_there[slots], self._places[slots] = was_there, places
        if rows is not None:
            self._rows[slots] = rows[is_new]

    def read_part(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the ids [n] and rows [n, W] of some places; a place is read once, in order.

        Args:
            start: The first place.
            stop: The one after the last.

        Raises:
            TableMemoryError: if there was no memory for rows that changed.
            TierChangedError: if the table grew so much that its pages had to be divided.
            FleetError: as ``DiskTier.read``.
        """
        if self.error is not None:
            raise self.error
        num_known, stop = self._known.size, min(stop, self.num_places)
        ids, rows = self._read_known(self._known[start:stop])
        if self._pages is not None and stop > num_known:
            first, last = (
                -(-max(0, place - num_known) // PAGE_PLACES) for place in (start, stop)
            )
            more = self._read_pages(self._pages, first, last)
            ids, rows = np.concatenate([ids, more[0]]), np.concatenate([rows, more[1]])
        # What is put aside of these places comes from there.
        kept = slice(0, self.num_kept)
        places, was_there = self._places[kept], self._was_there[kept]
        chosen = np.flatnonzero((places >= start) & (places < stop) & was_there)
        self._next = max(self._next, stop)
        if not chosen.size:
            return ids, rows
        return (
            np.concatenate([ids, self._aside.ids()[chosen]]),
            np.concatenate([rows, self._rows[chosen]]),
        )

    def end(self) -> None:
        """Let the tier's pages be divided again. May be repeated."""
        if self._pages is not None:
            self._pages.tier.parts.let_go(self._pages.hold)

    def _read_known(
        self, keys: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the rows of keys that haven't changed."""
        keys = keys[self._aside.find(_ids(keys), create=False) < 0]
        found, rows = self._look(keys)
        return _ids(keys[found]), rows[found]

    def _read_pages(
        self, pages: TieredPages, first: int, last: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the rows of pages whose keys are neither noted nor put aside.

        Raises:
            TierChangedError: if pages were divided.
        """
        if pages.hold.is_broken:
            raise TierChangedError(path=pages.tier.path)
        keys, rows = pages.tier.parts.on_pages(first, last)
        is_other = ~self._is_known(keys)
        is_other &= self._aside.find(_ids(keys), create=False) < 0
        return _ids(keys[is_other]), rows[is_other].view(np.float32)

    def _places_of(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return where keys are read, or would be: int64 [n]."""
        at = np.searchsorted(self._known, keys)
        places = np.where(self._is_known(keys), at, self.num_places)
        if self._pages is not None and not self._pages.hold.is_broken:
            others = np.flatnonzero(places == self.num_places)
            homes = self._pages.tier.parts.homes_of(keys[others])
            places[others] = self._known.size + PAGE_PLACES * homes
        return places

    def _is_known(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        if not self._known.size:
            return np.zeros(keys.size, np.bool_)
        at = np.minimum(np.searchsorted(self._known, keys), self._known.size - 1)
        same: NDArray[np.bool_] = self._known[at] == keys
        return same

    @override
    def _drop_kept(self) -> None:
        super()._drop_kept()
        self._rows = self._rows[:0].copy()

    def _grow(self, num: int) -> None:
        if num > len(self._rows):
            size = max(num, 2 * len(self._rows))
            self._rows = _grown(self._rows, size)
            self._was_there = _grown(self._was_there, size)
            self._places = _grown(self._places, size)


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    """Return an array that begins as another, and goes on with zeros."""
    grown = np.zeros((size, *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown


def _ids(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    return keys.view(np.int64)
