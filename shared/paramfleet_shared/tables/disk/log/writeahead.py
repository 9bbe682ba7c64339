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
from paramfleet_shared.tables.disk.merging import Source
from paramfleet_shared.tables.disk.pages.header import TierState

__all__ = ["WriteAhead"]

_LEAST_ENTRIES = 1 << 10

_BEGINS_AT = 0.9
"""A merge is wanted when so much of the memory for a part is full."""
_REST_ROWS = 1 << 16
"""Rows of a piece of those that are on no page."""


class WriteAhead:
    """The log: one part that grows, and one that is merged, perhaps.

    Args:
        folder: Where it is.
        state: Of the tier; segments that are merged are removed.
        transfers: Reads rows.
        system: The calls of the system.
        memory: Bytes for keys, of both parts; and what rows are read to.

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
        self._part_bytes = max(_LEAST_ENTRIES * KEY_BYTES, memory_bytes * 2 // 3)
        """For the growing part; half of it while there is a frozen one."""
        self.parts: list[Logged] = []
        """The part that grows, and the frozen one if there is one: the newest first."""
        self._merged = state.merged
        self._opened: list[Segment] = []
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            self._recover(state)
            stack.pop_all()

    @property
    def num_bytes(self) -> int:
        """Return how long the log is."""
        return sum(segment.end for part in self.parts for segment in part.segments)

    @property
    def _most_entries(self) -> int:
        """Return how many entries a part has at most, unless one call brings more."""
        return self._part_bytes // KEY_BYTES

    @property
    def entries_meanwhile(self) -> int:
        """Return how many entries may come while a part is merged."""
        return self._most_entries // 2

    @property
    def is_nearly_full(self) -> bool:
        """Return whether it is time to merge what the growing part has."""
        return self.parts[0].num_full_bytes >= _BEGINS_AT * self._part_bytes

    @property
    def frozen_until(self) -> int:
        """Return the number of the last segment that is frozen."""
        return self.parts[-1].segments[-1].number if len(self.parts) > 1 else self._merged

    def has_room(self, num_keys: int) -> bool:
        """Return whether so many keys may come. To a part without any, any number may."""
        have = self.parts[0].num_full_bytes
        limit = self._part_bytes if len(self.parts) == 1 else self._part_bytes // 2
        return not have or have + num_keys * KEY_BYTES + RECORD_BYTES <= limit

    def append(
        self, kind: int, keys: NDArray[np.uint64], rows: NDArray[np.uint32] | None
    ) -> None:
        """Log a record.

        Raises:
            TierFullError: if there is no room; nothing was changed.
            TierFailedError: if the system refuses.
        """
        part = self.parts[0]
        segment = part.segments[-1]
        offset = 0
        if kind == PUT or self._system.survives:  # else nobody reads that a row is gone
            with self._remembering():
                offset = segment.append(kind, keys, rows)
        part.note(kind, keys, (segment.number, offset, 4 * self.pitch))

    def sync(self) -> None:
        """Wait until the disk has all records.

        Raises:
            TierFailedError: if the system refuses.
        """
        with self._remembering():
            for segment in self.parts[0].segments:
                segment.sync()

    def freeze(self, state: TierState) -> Source:
        """Return what is to be merged: the frozen part, or else the growing one from now on.

        Raises:
            TierFullError: if there is no room for a new segment; nothing was changed.
            TierFailedError: if the system refuses.
        """
        if len(self.parts) == 1 and self.parts[0].num_entries:
            self.sync()
            number = self.parts[0].segments[-1].number + 1
            with self._remembering():
                self.parts.insert(0, self._new_part(number, state))
        return _Frozen(self, self.parts[-1] if len(self.parts) > 1 else Logged())

    def forget_frozen(self) -> None:
        """Remove the segments that are merged, as the pages' state says by now."""
        if len(self.parts) > 1:
            self._merged = self.frozen_until
            for segment in self.parts.pop().segments:
                segment.close()
                # What can't be removed now is removed when the folder is opened again.
                with contextlib.suppress(OSError):
                    self._system.remove(segment.path)

    def read(
        self,
        part: Logged,
        places: NDArray[np.int64],
        numbers: NDArray[np.int64],
        out: NDArray[np.uint32],
    ) -> None:
        """Read rows of a part: those at ``places`` to ``out[numbers]``.

        Raises:
            TierReadError: if the system refuses.
        """
        read_logged(part.segments, places, numbers, out, self._by)

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
            self.read(part, places[is_put], at[is_put], rows)
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
                numbers = numbers[each.find(part.keys[numbers]) == UNKNOWN]
            for first in range(0, numbers.size, _REST_ROWS):
                some = numbers[first : first + _REST_ROWS]
                rows = np.empty((some.size, self.pitch), np.uint32)
                self.read(part, part.places_of(some), np.arange(some.size), rows)
                yield part.keys[some], rows
            newer.append(part)

    def close(self) -> None:
        """Close the files; idempotent."""
        for part in self.parts:
            for segment in part.segments:
                segment.close()
        for segment in self._opened:
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

    def _new_part(self, number: int, state: TierState) -> Logged:
        """Begin a segment.

        Raises:
            TierFullError: if there is no room.
            TierFailedError: if the system refuses.
        """
        part = Logged(self._most_entries)
        try:
            segment = Segment(self._folder, number, state, self._system)
        except OSError as error:
            failure = write_error(self._folder, error, is_whole=True)
            raise failure from error
        with contextlib.ExitStack() as stack:
            stack.callback(segment.close)
            segment.begin()
            stack.pop_all()
        part.segments.append(segment)
        return part

    def _recover(self, state: TierState) -> None:
        """Read the segments there are.

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
        if not left:
            self.parts.append(self._new_part(state.merged + 1, state))
            return
        part = Logged(self._most_entries)
        for number in left:
            segment = Segment(self._folder, number, state, self._system)
            self._opened.append(segment)
            for record in segment.records(is_last=number == left[-1]):
                where = (number, record.rows_offset, 4 * self.pitch)
                part.note(record.kind, record.keys, where)
            part.segments.append(segment)
        self.parts.append(part)


class _Frozen:
    """What a merge takes from the log."""

    def __init__(self, log: WriteAhead, part: Logged) -> None:
        self._log, self._part = log, part
        self.keys = part.keys
        self.numbers = np.flatnonzero(part.is_newest()).astype(np.uint32)

    def is_put(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of ``keys[numbers]`` were put."""
        put: NDArray[np.bool_] = self._part.places_of(numbers) != GONE
        return put

    def load(self, numbers: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Return some of the rows: those of ``keys[numbers]``.

        Raises:
            TierReadError: if they can't be read.
        """
        rows = np.empty((numbers.size, self._log.pitch), np.uint32)
        places = self._part.places_of(numbers)
        self._log.read(self._part, places, np.arange(numbers.size), rows)
        return rows
