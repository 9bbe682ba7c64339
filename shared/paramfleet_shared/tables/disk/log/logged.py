"""Which keys are in the log, and where their newest rows are."""

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.disk.access.transfers import Arena, Transfers
from paramfleet_shared.tables.disk.errors import TierReadError
from paramfleet_shared.tables.disk.kernels.copying import copy_rows
from paramfleet_shared.tables.disk.kernels.pages import make_runs
from paramfleet_shared.tables.disk.log.segments import PUT, Segment
from paramfleet_shared.tables.memory.slot_index import SlotIndex

__all__ = ["GONE", "KEY_BYTES", "UNKNOWN", "Logged", "read_logged"]

UNKNOWN, GONE = -1, -2
"""As the place of a key: the log doesn't name it, or says that it was removed."""

KEY_BYTES = 48
"""What a key takes in memory, at most: 8 in the list of ids, 8 for its place, and its part of
the index's lines, which are 0.35 full at least."""

_OFFSET_BITS = 40
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
_FIRST_BYTES = 1 << 16
_BLOCK_BITS = 12
_BLOCK = 1 << _BLOCK_BITS
_GAP, _RUN = 8, 64
"""Blocks of 4 KiB that may lie between two rows of one read, and blocks of a read."""
_CHUNK_BYTES = 8 << 20


class Logged:
    """The keys of some segments."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self._index = SlotIndex(table="the log of a tier on disk")
        self._places = np.empty(_FIRST_BYTES // 8, np.int64)

    @property
    def num_keys(self) -> int:
        """Return how many keys there are, removed ones among them."""
        return self._index.num_rows

    @property
    def num_bytes(self) -> int:
        """Return the memory in use."""
        return self._index.num_bytes + self._places.nbytes

    @property
    def keys(self) -> NDArray[np.uint64]:
        """Return all keys, each once: uint64 [n], a view."""
        return self._index.ids().view(np.uint64)

    @property
    def places(self) -> NDArray[np.int64]:
        """Return the place of each of ``keys``, or ``GONE``."""
        return self._places[: self.num_keys]

    def note(self, kind: int, keys: NDArray[np.uint64], where: tuple[int, int, int]) -> None:
        """Take a record.

        Args:
            kind: ``PUT`` or ``REMOVE``.
            keys: uint64 [n]; of a key that is there twice, the last row counts.
            where: Number of the segment, offset of the first row, bytes of each.

        Raises:
            CapacityError: if there are too many keys.
        """
        slots = self._index.find(keys.view(np.int64), create=True)
        if self.num_keys > self._places.size:
            places = np.empty(max(self.num_keys, 2 * self._places.size), np.int64)
            places[: self._places.size] = self._places
            self._places = places
        segment, offset, row_bytes = where
        if kind == PUT:
            first = (segment << _OFFSET_BITS) + offset
            self._places[slots] = first + row_bytes * np.arange(keys.size)
        else:
            self._places[slots] = GONE

    def slots_of(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return where in ``keys`` and ``places`` each key is, -1 for nowhere: int64 [n]."""
        return self._index.find(keys.view(np.int64), create=False)

    def find(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the place of each key, ``GONE`` or ``UNKNOWN``: int64 [n]."""
        if not self.num_keys:
            return np.full(keys.size, UNKNOWN)
        slots = self.slots_of(keys)
        places: NDArray[np.int64] = self._places[slots]
        places[slots < 0] = UNKNOWN
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
    for segment in segments:
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
