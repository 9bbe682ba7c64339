"""Which ids of a table get a row when they are pushed.

What decides is the table's entry and the pushes themselves, in their order: the same pushes
admit the same ids, however many owners share the shards. Each shard of the job has the same
part of the most rows that a table may have.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.counting import (
    DEPTH,
    MAX_WIDTH_BITS,
    admit_by_hash,
    count_keys,
    counts_of,
)
from paramfleet_shared.tables.memory.reservation import reserve
from paramfleet_shared.tables.rows.routing import mixed, route
from paramfleet_shared.tables.spec import TableSpec, stream_of

__all__ = ["HAS_ROW", "NEVER", "Admission", "SketchPages", "limited"]

SKETCH_BITS = 24
"""Of the counters in a line of all of a table's shards together: 16.8 million. With three lines
of a byte each a table's sketches take 48 MiB at most, of all pservers."""

AGES_AFTER = 1.0
"""Counts of a sketch, in times the counters of a line, after which all are halved: so ids that
come no more don't fill it, and those that do are seldom counted with others."""


HAS_ROW = 0
"""How often an id must still come that has a row; one that gets it when it comes next: 1."""

NEVER = 1 << 30
"""How often one must come that gets no row ever."""

PAGE = 4096
"""Counters that are copied together; fewer where a line has fewer."""


class SketchPages(NamedTuple):
    """How often ids of one shard came that have no row, as far as there were any."""

    pages: NDArray[np.int64]
    """Which pages have other than zeros. [m]"""
    counters: NDArray[np.uint8]
    """Theirs. [m, page]"""
    num_counted: int
    """Ids counted since the counters were halved last, and half of those before."""


class _Sketch:
    """Counters of one shard, zeros at first, which take memory when they count."""

    def __init__(self, width: int) -> None:
        self.counters = reserve(DEPTH * width, np.uint8)
        self.by_page = self.counters.reshape(-1, min(PAGE, width))
        self.touched = np.zeros(len(self.by_page), np.bool_)
        self.num_counted = 0
        self._most = int(AGES_AFTER * width)

    def count(self, keys: NDArray[np.uint64], least: int, admitted: NDArray[np.bool_]) -> None:
        """Count keys, and say which have come often enough."""
        num = count_keys(self.counters, self.touched, keys, least, admitted)
        self.num_counted += num
        if self.num_counted >= self._most:
            self.by_page[self.touched] >>= 1
            self.num_counted //= 2


class Admission:
    """Decides for one shard's owner which unknown ids get a row.

    Args:
        spec: A table with an entry.
    """

    def __init__(self, spec: TableSpec) -> None:
        self._entry = spec.entry
        self._num_shards = spec.num_shards
        self._stream = np.uint64(stream_of(spec.seed, spec.name))
        self._sketches: dict[int, _Sketch] = {}
        """By the number of their shard in the job."""
        self._share = spec.entry.max_rows // spec.num_shards
        """Rows that a shard may have; 0 for no such limit."""
        self._num_rows = np.zeros(spec.num_shards, np.int64)
        """Of each shard here, where there is a limit."""
        self.num_admitted = 0
        self.num_refused = 0

    @property
    def num_bytes(self) -> int:
        """Return the memory of the sketches, as far as they have counted."""
        return sum(
            int(each.touched.sum()) * each.by_page.shape[1] for each in self._sketches.values()
        )

    def decide(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which ids get a row now, of ids that have none: bool [n].

        Args:
            keys: uint64 [n], each once.
        """
        admitted = np.empty(keys.size, np.bool_)
        if self._entry.kind == "probability":
            admit_by_hash(keys, self._stream, self._most_hash, admitted)
        elif self._entry.kind == "count_filter":
            self._count(keys, admitted)
        else:
            admitted[:] = True
        return self._counted(keys, admitted)

    def accept(self, keys: NDArray[np.uint64], uses: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which ids get a row now, of ids that have none and that a worker counts, too.

        Args:
            keys: uint64 [n], each once.
            uses: int64 [n], in how many steps each came since it was asked about last; 0 of an
                id that the worker has admitted by its own counts.
        """
        admitted = uses <= 0
        if self._entry.kind == "count_filter":
            waits = np.flatnonzero(~admitted)
            number = 0
            while waits.size:
                found = np.empty(waits.size, np.bool_)
                self._count(keys[waits], found)
                admitted[waits[found]] = True
                number += 1
                waits = waits[~found & (uses[waits] > number)]
        return self._counted(keys, admitted)

    def waits(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Return in how many steps ids must come to get a row in the last one; count nothing.

        Whether there is room for it then isn't looked at.

        Args:
            keys: uint64 [n], of ids that have none.

        Returns:
            int32 [n], from 1 to ``NEVER``.
        """
        waits = np.ones(keys.size, np.int32)
        if self._entry.kind == "probability":
            admitted = np.empty(keys.size, np.bool_)
            admit_by_hash(keys, self._stream, self._most_hash, admitted)
            waits[~admitted] = NEVER
        elif self._entry.kind == "count_filter":
            least = int(self._entry.value)
            routed = route(keys.view(np.int64), self._num_shards)
            counts = np.zeros(keys.size, np.int32)
            for shard in np.flatnonzero(np.diff(routed.offsets)).tolist():
                where = slice(*routed.offsets[shard : shard + 2].tolist())
                if shard in self._sketches:
                    counters = self._sketches[shard].counters
                    counts_of(counters, routed.ids[where].view(np.uint64), counts[where])
            waits[routed.positions] = np.maximum(1, least - counts)
        return waits

    def note_uses(self, keys: NDArray[np.uint64], uses: NDArray[np.int32]) -> None:
        """Count in how many steps ids came that had no row; none gets one for it.

        Args:
            keys: uint64 [n], each once.
            uses: int32 [n].
        """
        if self._entry.kind != "count_filter":
            return
        most = min(int(uses.max(initial=0)), int(self._entry.value) - 1)
        for number in range(most):
            counted = keys[uses > number]
            self._count(counted, np.empty(counted.size, np.bool_))

    def free_rows(self) -> NDArray[np.int64]:
        """Return how many rows each shard of the job may still get: int64 [shards].

        Of a shard that is elsewhere it is what an empty one may.
        """
        return np.maximum(self._share - self._num_rows, 0)

    @property
    def _most_hash(self) -> np.uint64:
        """Return below which hash an id is admitted by chance."""
        return np.uint64(self._entry.value * 2.0**64)

    def _counted(
        self, keys: NDArray[np.uint64], admitted: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Return which of those admitted there is room for, and count them."""
        if self._share:
            self._limit(keys, admitted)
        num = int(admitted.sum())
        self.num_admitted += num
        self.num_refused += keys.size - num
        return admitted

    def note_made(self, ids: NDArray[np.int64]) -> None:
        """Count rows that were made: ids int64 [n], each once."""
        if self._share:
            self._num_rows += np.diff(route(ids, self._num_shards).offsets)

    def note_removed(self, ids: NDArray[np.int64]) -> None:
        """Count rows that were removed: ids int64 [n], each once."""
        if self._share:
            self._num_rows -= np.diff(route(ids, self._num_shards).offsets)

    def sketches(self) -> dict[int, SketchPages]:
        """Return copies of the sketches by the number of their shard in the job."""
        found = {}
        for shard, each in self._sketches.items():
            pages = np.flatnonzero(each.touched)
            found[shard] = SketchPages(pages, each.by_page[pages], each.num_counted)
        return found

    def restore(self, shard: int, some: SketchPages) -> None:
        """Take over pages of another one's sketch.

        Raises:
            ValueError: if there is no such shard, or it has no such pages.
        """
        if self._entry.kind != "count_filter" or not 0 <= shard < self._num_shards:
            message = f"shard {shard} has no sketch"
            raise ValueError(message)
        own = self._of(shard)
        num, size = own.by_page.shape
        fits = some.counters.shape == (len(some.pages), size)
        if not fits or ((some.pages < 0) | (some.pages >= num)).any():
            message = f"a sketch has {num} pages of {size} counters"
            raise ValueError(message)
        own.by_page[some.pages] = some.counters
        own.touched[some.pages] = True
        own.num_counted = some.num_counted

    def _of(self, shard: int) -> _Sketch:
        if shard not in self._sketches:
            bits = SKETCH_BITS - (self._num_shards - 1).bit_length()
            self._sketches[shard] = _Sketch(1 << min(MAX_WIDTH_BITS, bits))
        return self._sketches[shard]

    def _limit(self, keys: NDArray[np.uint64], admitted: NDArray[np.bool_]) -> None:
        """Admit no more than there is room for."""
        wanted = np.flatnonzero(admitted)
        admitted[wanted] = limited(keys[wanted], self.free_rows())

    def _count(self, keys: NDArray[np.uint64], admitted: NDArray[np.bool_]) -> None:
        routed = route(keys.view(np.int64), self._num_shards)
        least = int(self._entry.value)
        for shard in np.flatnonzero(np.diff(routed.offsets)).tolist():
            where = slice(*routed.offsets[shard : shard + 2].tolist())
            found = np.empty(where.stop - where.start, np.bool_)
            self._of(shard).count(routed.ids[where].view(np.uint64), least, found)
            admitted[routed.positions[where]] = found


def limited(keys: NDArray[np.uint64], free_rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which ids there is room for, in a full shard those of the least hashes: bool [n].

    Args:
        keys: uint64 [n], each once.
        free_rows: int64 [shards], rows that each shard of the job may get.
    """
    fits = np.ones(keys.size, np.bool_)
    routed = route(keys.view(np.int64), len(free_rows))
    for shard in np.flatnonzero(np.diff(routed.offsets) > free_rows).tolist():
        where = slice(*routed.offsets[shard : shard + 2].tolist())
        order = np.argsort(mixed(routed.ids[where].view(np.uint64)))
        fits[routed.positions[where][order[free_rows[shard] :]]] = False
    return fits
