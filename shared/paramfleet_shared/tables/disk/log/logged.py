"""Which keys are in the log, and where their newest rows are."""

import secrets

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.disk.access.transfers import Arena, Transfers
from paramfleet_shared.tables.disk.errors import TierReadError
from paramfleet_shared.tables.disk.kernels.copying import copy_rows
from paramfleet_shared.tables.disk.kernels.logging import (
    find_entries,
    newest_entries,
    note_entries,
)
from paramfleet_shared.tables.disk.kernels.pages import make_runs
from paramfleet_shared.tables.disk.log.segments import PUT, Segment
from paramfleet_shared.tables.disk.log.splitting import Split
from paramfleet_shared.tables.kernels.basics.compiled import as_input

__all__ = ["GONE", "KEY_BYTES", "RECORD_BYTES", "UNKNOWN", "Logged", "read_logged"]

UNKNOWN, GONE = -1, -2
"""As the place of a key: the log doesn't name it, or says that it was removed."""

KEY_BYTES = 14
"""What an entry takes in memory where the log is full: its key, and 4/3 slots of the table."""

RECORD_BYTES = 16
"""What a record takes beside its entries."""

_SLOTS, _ENTRIES = 4, 3
"""Slots of the hash table for so many entries, at least."""
_FIRST_ENTRIES = 1 << 10
_GROWTH = 1.25
"""All entries are noted again whenever memory for them is taken: some five times, then."""
_FIRST_RECORDS = 1 << 4

_OFFSET_BITS = 40
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
_BLOCK_BITS = 12
_GAP, _RUN = 8, 64
"""Blocks of 4 KiB that may lie between two rows of one read, and blocks of a read."""
_CHUNK_BYTES = 8 << 20


class Logged:
    """The keys of a part of the log. An entry is a key of a record; the newest of a key counts.

    n = keys of a call.

    Args:
        most: Entries for which memory is expected to be used: no more than that is taken
            until there are more.
        since: The number of the first segment that has any of them.
        keys: Which keys may be there: the division of all, and the number of their range; None
            for any.
    """

    def __init__(
        self,
        most: int = _FIRST_ENTRIES,
        *,
        since: int = 0,
        keys: tuple[Split, int] | None = None,
    ) -> None:
        self.since = since
        self.may_have = keys
        self.num_keys = 0
        """How many keys there are, removed ones among them."""
        self.num_entries = 0
        self._most = most
        self._salt = np.uint64(secrets.randbits(64))
        self._keys = np.empty(0, np.uint64)
        self._table = np.zeros(1, np.uint32)
        self._num_records = 0
        self._records = np.empty((2, _FIRST_RECORDS), np.int64)
        """Of each its first entry, and the place of that, or ``GONE``."""
        self._row_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Return the memory in use."""
        return self._keys.nbytes + self._table.nbytes + self._records.nbytes

    @property
    def num_full_bytes(self) -> int:
        """Return what the entries take, without what is kept free for others."""
        return self.num_entries * KEY_BYTES + self._num_records * RECORD_BYTES

    def may_share(self, other: "Logged") -> bool:
        """Return whether a key may be here and in another part."""
        if self.may_have is None or other.may_have is None:
            return True
        (split, number), (others, its) = self.may_have, other.may_have
        return split != others or number == its

    @property
    def keys(self) -> NDArray[np.uint64]:
        """Return the key of each entry: uint64 [num_entries], a view."""
        return self._keys[: self.num_entries]

    def is_newest(self) -> NDArray[np.bool_]:
        """Return which entries count: bool [num_entries]."""
        newest = np.ones(self.num_entries, np.bool_)
        if self.num_keys < self.num_entries:
            newest_entries(self._table, self._keys, self._salt, newest)
        return newest

    def places_of(self, entries: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the place of each entry, or ``GONE``: int64 [n]."""
        firsts, places = self._records[:, : self._num_records]
        record = np.searchsorted(firsts, entries, side="right") - 1
        found: NDArray[np.int64] = places[record]
        is_put = found != GONE
        found[is_put] += self._row_bytes * (entries - firsts[record])[is_put]
        return found

    def note(self, kind: int, keys: NDArray[np.uint64], where: tuple[int, int, int]) -> None:
        """Take a record.

        Args:
            kind: ``PUT`` or ``REMOVE``.
            keys: uint64 [n]; of a key that is there twice, the last row counts.
            where: Number of the segment, offset of the first row, bytes of each.
        """
        segment, offset, self._row_bytes = where
        first, last = self.num_entries, self.num_entries + keys.size
        if last > self._keys.size:
            self._reserve(last)
        self._keys[first:last] = keys
        self.num_keys += note_entries(self._table, self._keys, self._salt, first, last)
        self.num_entries = last
        number, room = self._num_records, self._records.shape[1]
        if number == room:
            self._records = np.concatenate([self._records, np.empty_like(self._records)], 1)
        place = (segment << _OFFSET_BITS) + offset if kind == PUT else GONE
        self._records[:, number] = first, place
        self._num_records += 1

    def _reserve(self, num: int) -> None:
        """Have memory for so many entries."""
        grown = max(num, int(_GROWTH * self._keys.size), _FIRST_ENTRIES)
        most = grown if num > self._most else min(self._most, grown)
        keys = np.empty(most, np.uint64)
        keys[: self.num_entries] = self.keys
        self._keys = keys
        self._table = np.zeros(_SLOTS * most // _ENTRIES + 1, np.uint32)
        note_entries(self._table, keys, self._salt, 0, self.num_entries)

    def entries_of(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the newest entry of each key, -1 for none: int64 [n]."""
        entries = np.empty(keys.size, np.int64)
        find_entries(self._table, self._keys, self._salt, as_input(keys, np.uint64), entries)
        return entries

    def find(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the place of each key, ``GONE`` or ``UNKNOWN``: int64 [n]."""
        places = np.full(keys.size, UNKNOWN)
        if self.num_keys:
            entries = self.entries_of(keys)
            known = entries >= 0
            places[known] = self.places_of(entries[known])
        return places


def read_logged(
    segments: list[Segment],
    places: NDArray[np.int64],
    numbers: NDArray[np.int64],
    out: NDArray[np.uint32],
    by: tuple[Transfers, Arena],
) -> None:
    """Read rows of the log.

    Args:
        segments: Those that the places are in.
        places: int64 [n].
        numbers: int64 [n]: which row of ``out`` is which.
        out: uint32 [m, pitch].
        by: What reads, and where to.

    Raises:
        TierReadError: if the system refuses.
    """
    order = np.argsort(places, kind="stable")
    places, numbers = places[order], numbers[order]
    of_segment = places >> _OFFSET_BITS
    for segment in segments if places.size else ():
        first, last = np.searchsorted(of_segment, [segment.number, segment.number + 1])
        if first < last:
            offsets = places[first:last] & _OFFSET_MASK
            try:
                _read_rows(segment.file, offsets, numbers[first:last], out, by)
            except OSError as error:
                reason = error.strerror or str(error)
                raise TierReadError(path=str(segment.path), reason=reason) from error


def _read_rows(
    file: int,
    offsets: NDArray[np.int64],
    numbers: NDArray[np.int64],
    out: NDArray[np.uint32],
    by: tuple[Transfers, Arena],
) -> None:
    """Read rows of a segment that are in the order of their offsets.

    Raises:
        OSError: if the system refuses.
    """
    transfers, arena = by
    runs = np.empty((offsets.size, 4), np.int64)
    runs = runs[: make_runs(offsets >> _BLOCK_BITS, _GAP, _RUN, runs)]
    starts = runs[:, 0] << _BLOCK_BITS
    sizes = offsets[runs[:, 3] - 1] + 4 * out.shape[1] - starts
    ends = np.cumsum(-(-sizes // 8) * 8)
    begin = 0
    while begin < len(runs):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + _CHUNK_BYTES, side="right")))
        at = np.append(0, ends[begin : end - 1] - before)
        arena.reserve(int(ends[end - 1]) - before)
        transfers.run(file, starts[begin:end], sizes[begin:end], arena.address + at)
        first, last = int(runs[begin, 2]), int(runs[end - 1, 3])
        lengths = runs[begin:end, 3] - runs[begin:end, 2]
        shift = np.repeat(at - starts[begin:end], lengths)
        words = (offsets[first:last] + shift) >> 2
        copy_rows(arena.words.view(np.uint32), words, numbers[first:last], out)
        begin = end
