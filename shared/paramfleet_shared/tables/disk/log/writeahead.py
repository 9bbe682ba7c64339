"""The log of a tier: its segments, and the keys that are in them."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.errors import FleetError
from paramfleet_shared.tables.disk.access.system import System, write_error
from paramfleet_shared.tables.disk.access.transfers import Arena, Transfers
from paramfleet_shared.tables.disk.errors import TierDamagedError
from paramfleet_shared.tables.disk.log.logged import (
    GONE,
    KEY_BYTES,
    RECORD_BYTES,
    UNKNOWN,
    Logged,
    read_logged,
)
from paramfleet_shared.tables.disk.log.segments import PUT, Segment, segments_in
from paramfleet_shared.tables.disk.log.splitting import Split
from paramfleet_shared.tables.disk.merging import Source
from paramfleet_shared.tables.disk.pages.header import TierState

__all__ = ["LEAST_OF_RANGE", "RANGES", "WriteAhead", "keys_at_once", "most_logged"]

_LEAST_ENTRIES = 1 << 10

RANGES, LEAST_OF_RANGE = 8, 1 << 12
"""Parts of all keys of which one after the other is merged, and entries of one for which that
is worth it: a page is written for more rows at once, as those of the other parts stay."""

_SEGMENTS = 2
"""A segment gets one in so many of all rows before the next one begins: rows that are looked up
in few files take few reads."""
_MEANWHILE = 2 / 3
"""Of what a merge gives back, memory for so many keys is left when it begins."""
_REST_ROWS = 1 << 16
"""Rows of a piece of those that are on no page."""


def _ranges_for(num_entries: int) -> int:
    return RANGES if num_entries >= RANGES * LEAST_OF_RANGE else 1


def _begins_at(num_ranges: int) -> float:
    """Return how full the memory is when a merge is to begin.

    While parts are merged one after the other, that part has 2 of ``num_ranges`` + 1 of all
    entries.
    """
    return (num_ranges + 1) / (num_ranges + 1 + 2 * _MEANWHILE)


def _entries_of_merge(num_entries: int, num_ranges: int) -> int:
    """Return how many of all entries a merge has, while one comes after the other."""
    return int(num_entries * _begins_at(num_ranges) * 2 / (num_ranges + 1))


def keys_at_once(num_entries: int) -> int:
    """Return with how many keys each page is written, times the pages.

    Args:
        num_entries: That there is memory for.
    """
    num = _ranges_for(num_entries)
    return num * _entries_of_merge(num_entries, num)


def most_logged(num_entries: int) -> int:
    """Return of how many rows the segments are, about, at most.

    Args:
        num_entries: That there is memory for.
    """
    is_whole = _ranges_for(num_entries) == 1
    return num_entries if is_whole else keys_at_once(num_entries) + num_entries // _SEGMENTS


class WriteAhead:
    """The log: parts that grow, one of each range of keys, and those that are merged.

    Args:
        folder: Where it is.
        state: Of the tier; segments that are merged are removed.
        transfers: Reads rows.
        system: The calls of the system.
        memory: Bytes for keys, of all parts; and what rows are read to.

    Raises:
        TierDamagedError: if a segment isn't what was written.
        TierFullError: if there is no room for a new segment.
        TierFailedError: if the system refuses to write.
        OSError: if it refuses otherwise.
    """

    def __init__(
        self,
        folder: Path,
        state: TierState,
        transfers: Transfers,
        system: System,
        memory: tuple[int, Arena],
    ) -> None:
        self._folder, self._system = folder, system
        memory_bytes, arena = memory
        self._by = (transfers, arena)
        self.pitch = state.row_bytes // 4
        self.failure: FleetError | None = None
        self.limit(memory_bytes)
        self._segments: list[Segment] = []
        """Those that are needed, the oldest first; the last one is written to."""
        self._growing: list[Logged] = []
        """Of each range of the keys that come."""
        self._former: list[Logged] = []
        """Parts that grow no more, the newest first: what one says of a key is older than what
        a part says that grows."""
        self._frozen: list[Logged] = []
        """Those of them that are being merged, or were when that failed; the oldest first."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            self._recover(state)
            stack.pop_all()

    def limit(self, memory_bytes: int) -> None:
        """Let keys take so many bytes from now on, of all parts."""
        self._most_entries = max(_LEAST_ENTRIES, memory_bytes // KEY_BYTES)
        self._wanted_ranges = _ranges_for(self._most_entries)

    @property
    def parts(self) -> list[Logged]:
        """Return all parts; of two that name a key, the newer one comes first."""
        return self._growing + self._former

    @property
    def num_bytes(self) -> int:
        """Return how long the log is."""
        return sum(segment.end for segment in self._segments)

    @property
    def num_entries(self) -> int:
        """Return how many keys its records have."""
        return sum(part.num_entries for part in self.parts)

    @property
    def entries_of_merge(self) -> int:
        """Return how many entries a merge has, while one comes after the other."""
        return _entries_of_merge(self._most_entries, self.num_ranges)

    @property
    def entries_meanwhile(self) -> int:
        """Return how many entries may come while a part is merged."""
        return int(self._most_entries * (1 - _begins_at(self.num_ranges)))

    @property
    def is_nearly_full(self) -> bool:
        """Return whether it is time to merge a part."""
        begins_at = _begins_at(self.num_ranges)
        return self._full_bytes >= begins_at * self._most_entries * KEY_BYTES

    @property
    def is_frozen(self) -> bool:
        """Return whether a part is being merged, or was when that failed."""
        return bool(self._frozen)

    @property
    def merged_until(self) -> int:
        """Return the last segment that isn't needed any more, but for what is frozen."""
        left = [part for part in self.parts if part.num_entries and part not in self._frozen]
        return min([self._segments[-1].number, *(part.since for part in left)]) - 1

    @property
    def _full_bytes(self) -> int:
        return sum(part.num_full_bytes for part in self.parts)

    def has_room(self, num_keys: int) -> bool:
        """Return whether so many keys may come. To an empty log any number may."""
        more = num_keys * KEY_BYTES + self.num_ranges * RECORD_BYTES
        have = self._full_bytes
        return not have or have + more <= self._most_entries * KEY_BYTES

    def append(
        self, kind: int, keys: NDArray[np.uint64], rows: NDArray[np.uint32] | None
    ) -> None:
        """Log a record.

        Raises:
            TierFullError: if there is no room; nothing was changed.
            TierFailedError: if the system refuses.
        """
        ends = [keys.size]
        if self.num_ranges > 1:  # those of a range are beside each other, to be read at once
            order, ends = self._split.order(keys)
            keys, rows = keys[order], None if rows is None else rows[order]
        segment, offset = self._segments[-1], 0
        if kind == PUT or self._system.survives:  # else nobody reads that a row is gone
            with self._remembering():
                offset = segment.append(kind, keys, rows)
        first, row_bytes = 0, 4 * self.pitch
        for part, end in zip(self._growing, ends, strict=True):
            if first < end:
                if not part.num_entries:
                    part.since = segment.number
                where = (segment.number, offset + first * row_bytes, row_bytes)
                part.note(kind, keys[first:end], where)
            first = end

    def sync(self) -> None:
        """Wait until the disk has all records.

        Raises:
            TierFailedError: if the system refuses.
        """
        with self._remembering():
            for segment in self._segments:
                segment.sync()

    def freeze(self, state: TierState, *, whole: bool = False) -> Source:
        """Return what is to be merged: what is frozen, or else becomes so now.

        Args:
            state: Of the tier.
            whole: Whether that is all there is; else it is the part that began first.

        Raises:
            TierFullError: if there is no room for a new segment; nothing was changed.
            TierFailedError: if the system refuses.
        """
        if not self._frozen and self.num_entries:
            self.sync()
            segment_bytes = self._most_entries * 4 * self.pitch // _SEGMENTS
            if whole or self.num_ranges == 1 or self._segments[-1].end >= segment_bytes:
                self._begin_segment(state)
            split = Split.of(state, self._wanted_ranges)
            if whole or split != self._split:
                self._former = [
                    part for part in self._growing if part.num_entries
                ] + self._former
                self._divide(split)
            elif not self._former:  # else these go first, which may be older
                begun = [each for each, part in enumerate(self._growing) if part.num_entries]
                oldest = min(begun, key=lambda each: self._growing[each].since)
                self._former = [self._growing[oldest]]
                self._growing[oldest] = self._new_part(oldest)
            self._frozen = self._former[::-1] if whole else self._former[-1:]
        return _Frozen(self, self._frozen)

    def leave_segment(self, state: TierState) -> bool:
        """Begin a segment if all records of the last one are in the pages.

        They would be replayed when the folder is opened again, whatever the pages are then.

        Returns:
            Whether it did: then those before it aren't needed any more.

        Raises:
            TierFullError: if there is no room for a new segment; nothing was changed.
            TierFailedError: if the system refuses.
        """
        if self.num_entries or self._segments[-1].is_empty:
            return False
        self._begin_segment(state)
        return True

    def _begin_segment(self, state: TierState) -> None:
        """Write to a new segment from now on.

        Raises:
            TierFullError: if there is no room; nothing was changed.
            TierFailedError: if the system refuses.
        """
        self.sync()
        number = self._segments[-1].number + 1
        with self._remembering():
            self._segments.append(self._new_segment(number, state))

    def _divide(self, split: Split) -> None:
        """Divide the keys that come from now on, into parts that have none as yet."""
        self._split, self.num_ranges = split, split.num
        self._growing = [self._new_part(each) for each in range(split.num)]

    def forget_frozen(self) -> None:
        """Forget what is merged, as the pages' state says by now, and segments behind it."""
        merged = self.merged_until
        self._former = [part for part in self._former if part not in self._frozen]
        self._frozen = []
        while self._segments[0].number <= merged:
            segment = self._segments.pop(0)
            segment.close()
            # What can't be removed now is removed when the folder is opened again.
            with contextlib.suppress(OSError):
                self._system.remove(segment.path)

    def find(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the place of each key's newest row, ``GONE`` or ``UNKNOWN``: int64 [n]."""
        places = np.full(keys.size, UNKNOWN)
        if self.num_ranges == 1:
            order, ends = np.arange(keys.size, dtype=np.uint32), [keys.size]
        else:
            order, ends = self._split.order(keys)
            keys = keys[order]
        first = 0
        for part, end in zip(self._growing, ends, strict=True):
            if first < end and part.num_entries:
                places[order[first:end]] = part.find(keys[first:end])
            first = end
        for part in self._former:
            rest = np.flatnonzero(places[order] == UNKNOWN)
            if rest.size:
                places[order[rest]] = part.find(keys[rest])
        return places

    def read(
        self,
        places: NDArray[np.int64],
        numbers: NDArray[np.int64],
        out: NDArray[np.uint32],
    ) -> None:
        """Read rows: those at ``places`` to ``out[numbers]``.

        Raises:
            TierReadError: if the system refuses.
        """
        read_logged(self._segments, places, numbers, out, self._by)

    def overlay(
        self,
        keys: NDArray[np.uint64],
        rows: NDArray[np.uint32],
        unseen: list[NDArray[np.bool_]],
    ) -> NDArray[np.bool_]:
        """Give rows of pages what the log says of them.

        Args:
            keys: uint64 [n], each once.
            rows: uint32 [n, pitch]; changed.
            unseen: Of each part, which of its keys are on no page so far; changed.

        Returns:
            Which keys still have a row.

        Raises:
            TierReadError: if the system refuses.
        """
        stays = np.ones(keys.size, np.bool_)
        rest = np.arange(keys.size)
        for part, mask in zip(self.parts, unseen, strict=True):
            if not part.num_entries:
                continue
            entries = part.entries_of(keys[rest])
            known = entries >= 0
            mask[entries[known]] = False
            places, at = part.places_of(entries[known]), rest[known]
            is_put = places != GONE
            self.read(places[is_put], at[is_put], rows)
            stays[at[~is_put]] = False
            rest = rest[~known]
        return stays

    def rest(
        self, unseen: list[NDArray[np.bool_]]
    ) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint32]]]:
        """Yield the rows that are on no page, by pieces.

        Args:
            unseen: As ``overlay`` left it, for all pages.

        Raises:
            TierReadError: if the system refuses.
        """
        newer: list[Logged] = []
        for part, mask in zip(self.parts, unseen, strict=True):
            numbers = np.flatnonzero(mask)
            numbers = numbers[part.places_of(numbers) != GONE]
            for each in newer:
                if each.may_share(part):
                    numbers = numbers[each.find(part.keys[numbers]) == UNKNOWN]
            for first in range(0, numbers.size, _REST_ROWS):
                some = numbers[first : first + _REST_ROWS]
                rows = np.empty((some.size, self.pitch), np.uint32)
                self.read(part.places_of(some), np.arange(some.size), rows)
                yield part.keys[some], rows
            newer.append(part)

    def close(self) -> None:
        """Close the files; idempotent."""
        for segment in self._segments:
            segment.close()

    @contextlib.contextmanager
    def _remembering(self) -> Iterator[None]:
        """Remember an error after which nothing can go on.

        Raises:
            FleetError: what the block raises.
        """
        try:
            yield
        except FleetError as error:
            if not error.retryable:
                self.failure = error
            raise

    def _new_part(self, number: int) -> Logged:
        """Return a part for the keys of a range."""
        return Logged(self.entries_of_merge, keys=(self._split, number))

    def _new_segment(self, number: int, state: TierState) -> Segment:
        """Begin a segment.

        Raises:
            TierFullError: if there is no room.
            TierFailedError: if the system refuses.
        """
        try:
            segment = Segment(self._folder, number, state, self._system)
        except OSError as error:
            failure = write_error(self._folder, error, is_whole=True)
            raise failure from error
        with contextlib.ExitStack() as stack:
            stack.callback(segment.close)
            segment.begin()
            stack.pop_all()
        return segment

    def _recover(self, state: TierState) -> None:
        """Read the segments there are; what they have is one part, whatever its keys are.

        Raises:
            TierDamagedError: if one isn't what was written.
            TierFullError: if there is no room for a new segment.
            TierFailedError: if the system refuses to write.
            OSError: if it refuses otherwise.
        """
        numbers = segments_in(self._folder)
        for number in [each for each in numbers if each <= state.merged]:
            self._system.remove(self._folder / f"log-{number:08}")
        left = [each for each in numbers if each > state.merged]
        if left and left != list(range(state.merged + 1, left[-1] + 1)):
            raise TierDamagedError(
                path=str(self._folder),
                where=f"segment {state.merged + 1} of the log",
                reason=f"of the segments there are only {left}",
            )
        self._divide(Split.of(state, self._wanted_ranges))
        if not left:
            self._segments.append(self._new_segment(state.merged + 1, state))
            return
        part = Logged(self._most_entries, since=left[0])
        for number in left:
            segment = Segment(self._folder, number, state, self._system)
            self._segments.append(segment)
            for record in segment.records(is_last=number == left[-1]):
                where = (number, record.rows_offset, 4 * self.pitch)
                part.note(record.kind, record.keys, where)
        if part.num_entries:
            self._former = [part]


class _Frozen:
    """What a merge takes from the log.

    Args:
        log: Reads the rows.
        parts: The oldest first.
    """

    def __init__(self, log: WriteAhead, parts: list[Logged]) -> None:
        self._log, self._parts = log, parts
        self.keys = np.concatenate([np.empty(0, np.uint64), *(part.keys for part in parts)])
        self._ends = np.cumsum([part.num_entries for part in parts])
        numbers = [np.empty(0, np.int64)]
        for at, part in enumerate(parts):
            is_newest = part.is_newest()
            for newer in parts[at + 1 :]:
                if newer.may_share(part):
                    is_newest &= newer.find(part.keys) == UNKNOWN
            numbers.append(np.flatnonzero(is_newest) + self._first(at))
        self.numbers = np.concatenate(numbers).astype(np.uint32)

    def _first(self, at: int) -> int:
        return int(self._ends[at]) - self._parts[at].num_entries

    def _places(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where the rows of ``keys[numbers]`` are, or ``GONE``."""
        places = np.empty(numbers.size, np.int64)
        of_part = np.searchsorted(self._ends, numbers, side="right")
        for at, part in enumerate(self._parts):
            its = of_part == at
            places[its] = part.places_of(numbers[its] - self._first(at))
        return places

    def is_put(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of ``keys[numbers]`` were put."""
        put: NDArray[np.bool_] = self._places(numbers) != GONE
        return put

    def load(self, numbers: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Return some of the rows: those of ``keys[numbers]``.

        Raises:
            TierReadError: if they can't be read.
        """
        rows = np.empty((numbers.size, self._log.pitch), np.uint32)
        self._log.read(self._places(numbers), np.arange(numbers.size), rows)
        return rows
