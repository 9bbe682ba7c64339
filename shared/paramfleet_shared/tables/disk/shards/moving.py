"""Rows of a shard between memory and disk: brought in before a call, let go after it.

As long as all rows fit, there is no tier. If a row is in memory, what the tier has of it is
old, and counts no more. n = rows of a call, pitch = words of a row.
"""

import contextlib
import logging
import secrets
import shutil
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.errors import FleetError
from paramfleet_shared.tables.disk.access.system import ScratchSystem
from paramfleet_shared.tables.disk.errors import TierFullError, TierLeaveError, TierReadError
from paramfleet_shared.tables.disk.pages.ranges import KeyRange, place_after
from paramfleet_shared.tables.disk.shards.absent import AbsentKeys
from paramfleet_shared.tables.disk.shards.fetched import NONE_WAITS, FetchedRows
from paramfleet_shared.tables.disk.shards.residency import WINDOW_SHARE, Residency
from paramfleet_shared.tables.disk.stats import TierOptions
from paramfleet_shared.tables.disk.tier import DiskTier
from paramfleet_shared.tables.kernels.basics.compiled import as_input
from paramfleet_shared.tables.kernels.rows import gather, scatter
from paramfleet_shared.tables.memory.budget import MemoryBudget
from paramfleet_shared.tables.memory.reservation import reserve
from paramfleet_shared.tables.memory.slot_index import SlotIndex
from paramfleet_shared.tables.rows.cold import ColdRows, Fetch
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.values.sorting import each_once

__all__ = [
    "BESIDE_BYTES",
    "LOG_SHARE",
    "MOST_LOG_BYTES",
    "InMemory",
    "RowMover",
    "TieredOptions",
]

log = logging.getLogger(__name__)

BESIDE_BYTES = 16
"""What is known of a row in memory: where it is among the others, and whether it changed."""

_SLACK = 64
"""A part of one in so many of the rows in memory leaves at once, so that puts are large."""

LOG_SHARE = 8
"""A part of one in so many of the budget is for the keys in the log: the more of them are
merged at once, the more a page gets when it is written."""
MOST_LOG_BYTES = 128 << 20

_MOST_WINDOW = 0.75
_WINDOW_GROWS, _WINDOW_SHRINKS = 1.25, 0.998
_SELDOM = 16
"""If more than one row in so many is read again when it is changed, though it was read before
for that, the window is larger from then on: rows of more batches are on their way at once."""

_LEAST_AHEAD = 16
"""Fewer rows are read when they are needed: another thread takes as long to begin."""

_PART_BYTES = 32 << 20
"""Of rows in a part of all, at most, about."""
_NUMBER_ROWS = 8
"""Parts end with one of the numbers that name ranges of keys, for 2 to the power of this of
rows each, or for a group of pages."""

_ON_DISK, _CLEAN = 1, 2
"""Of a row in memory: the tier has one of its key; and it is the same."""


@dataclass(frozen=True, slots=True)
class TieredOptions:
    """Where the rows of a shard may be."""

    budget: MemoryBudget
    """How much memory its rows may take, with those of others."""
    folder: Callable[[], Path]
    """Returns a new folder for the rows that have no place there; asked when it is needed."""
    tier: TierOptions = field(default_factory=lambda: TierOptions(system=ScratchSystem()))
    """How it works there. The rows outlive the process elsewhere: in snapshots and the log of
    changes, or a checkpoint."""


@dataclass(frozen=True, slots=True)
class InMemory:
    """A shard's rows in memory."""

    index: SlotIndex
    floats: NDArray[np.float32]
    """All rows, one behind the other, as they are kept."""
    pitch: int
    look_ahead: Callable[[], None]
    """Has the memory made that the next rows will need."""


class RowMover:
    """Moves the rows of one shard. One thread uses it.

    Args:
        memory: The rows in memory.
        layout: Their columns.
        row_bytes: What a row takes in memory, its part of the index included.
        options: Where rows may be.
        cold: Counts of the shard.
    """

    def __init__(
        self,
        memory: InMemory,
        layout: RowLayout,
        row_bytes: int,
        options: TieredOptions,
        cold: ColdRows,
    ) -> None:
        self._memory, self._layout = memory, layout
        self._options, self._cold = options, cold
        most = memory.index.max_rows
        self._residency = Residency(most)
        self._absent = AbsentKeys()
        self._fetched = FetchedRows(most, cold)
        self._flags = reserve(most, np.uint8)
        """Of each row in memory: ``_ON_DISK``, ``_CLEAN``."""
        self._share = options.budget.share(row_bytes + BESIDE_BYTES)
        self._share.owner = options.tier.buffers  # one thread uses them, as all that have them
        self._share.give_up = weakref.WeakMethod(self._let_go)
        self._capacity = (-1, 0)
        """At which change of the budget how many rows might be in memory."""
        self.tier: DiskTier | None = None
        """None as long as all rows have fitted."""
        self._full_until = 0
        """With up to so many rows in memory a disk that was full isn't asked again."""
        self._salt = secrets.randbits(63)
        """Of the tier, and of parts of all rows before there is one."""
        self._window_share = WINDOW_SHARE
        self._num_brought = 0
        """Rows that were read since some were changed last."""
        self._num_logged = 0
        """Keys that came to the tier's log since it was merged for them."""

    @property
    def num_rows(self) -> int:
        """Return how many rows there are, in memory and on disk."""
        return self._memory.index.num_rows + self._cold.rows

    # Moving.

    def bring(
        self, tier: DiskTier, ids: NDArray[np.int64], *, changes: bool
    ) -> NDArray[np.int64]:
        """Read those rows of ids that are on disk alone.

        Args:
            tier: Where they are.
            ids: int64 [n]; an id may occur many times.
            changes: Whether the rows are about to be changed.

        Returns:
            The slots of the ids, int64 [n], if all were in memory before, else [0].

        Raises:
            RowShapeError: if ``ids`` are not int64 [n].
            FleetError: as ``DiskTier.read``.
        """
        slots = self._memory.index.find(ids, create=False)
        keys = as_input(ids, np.int64).view(np.uint64)
        stays = _ON_DISK if changes else _ON_DISK | _CLEAN
        flags = (self._flags, stays, self._fetched.waiting)
        missing, *used = self._residency.touch(keys, slots, flags)
        self._fetched.note_used(*used)
        if changes:
            self._fit_window(missing.size, keys.size)
        if not missing.size:
            self._options.tier.buffers.when_read()
            return slots
        if self._cold.rows:
            missing = each_once(missing)
            self._cold.wanted += missing.size
            missing = self._absent.others(missing)
            found, rows = tier.read(missing)
            self._options.tier.buffers.when_read()
            self._absent.note(missing[~found])
            self._come(missing[found], rows[found], stays)
            self._num_brought += missing.size
        return slots[:0]

    def _fit_window(self, num_missing: int, num: int) -> None:
        """Have the window hold rows from when they are read until they are changed.

        Args:
            num_missing: Rows to be changed now that aren't in memory.
            num: Of so many.
        """
        if min(num_missing, self._num_brought) * _SELDOM > num:
            self._window_share = min(_MOST_WINDOW, _WINDOW_GROWS * self._window_share)
        else:
            self._window_share = max(WINDOW_SHARE, _WINDOW_SHRINKS * self._window_share)
        self._num_brought = 0

    def read_ahead(self, tier: DiskTier, ids: NDArray[np.int64]) -> bool:
        """Begin to read those rows of ids, int64 [n], that are on disk alone.

        Returns:
            Whether there are any, but for a few.

        Raises:
            RowShapeError: if ``ids`` are not int64 [n].
            FleetError: as ``DiskTier.read_ahead``.
        """
        if not self._cold.rows:
            return False
        slots = self._memory.index.find(ids, create=False)
        keys = as_input(ids, np.int64).view(np.uint64)
        missing = self._absent.others(each_once(keys[slots < 0]))
        if missing.size < _LEAST_AHEAD:
            return False
        tier.read_ahead(missing)
        return True

    def fetch(self, tier: DiskTier, ids: NDArray[np.int64], most: int) -> Fetch:
        """Read rows of ids that are on disk alone before they are needed; they leave last.

        Args:
            tier: Where they are.
            ids: int64 [n]; an id may occur many times.
            most: Ids that are looked for on disk; those behind them aren't taken.

        Raises:
            RowShapeError: if ``ids`` are not int64 [n].
            FleetError: as ``DiskTier.read``.
        """
        keys = as_input(ids, np.int64).view(np.uint64)
        slots = self._memory.index.find(ids, create=False)
        places = np.flatnonzero(slots < 0)
        taken = keys.size if places.size <= most else int(places[most])
        flags = (self._flags, _ON_DISK | _CLEAN, NONE_WAITS)
        self._residency.touch(keys[:taken], slots[:taken], flags)
        capacity = self.capacity
        self._fetched.age(self._residency.num_entered, capacity)
        here = slots[:taken]
        self._fetched.note_found(here[here >= 0], self._residency.num_entered, capacity)
        missing = each_once(keys[places[:most]])
        if not missing.size or not self._cold.rows:
            return Fetch(taken)
        rest, num = self._absent.others(missing), 0
        while rest.size and (room := self._fetched.room(capacity)):
            some, rest = rest[:room], rest[room:]  # those without a row take no room
            self._cold.wanted += some.size
            found, rows = tier.read(some)
            self._absent.note(some[~found])
            self._come(some[found], rows[found], _ON_DISK | _CLEAN)
            came = self._memory.index.find(some[found].view(np.int64), create=False)
            self._fetched.note_brought(came, self._residency.num_entered)
            num += came.size
        return Fetch(taken, num, int(rest.size))

    def _come(self, keys: NDArray[np.uint64], rows: NDArray[np.uint32], flags: int) -> None:
        """Put rows that were on disk alone into memory, with flags."""
        if not keys.size:
            return
        slots = self._memory.index.find(keys.view(np.int64), create=True)
        flat, pitch = as_input(rows.view(np.float32), np.float32), self._memory.pitch
        scatter(self._memory.floats, pitch, slots, flat.reshape(-1), (0, pitch))
        self._flags[slots] = flags
        self._residency.enter(slots)
        self._cold.rows -= keys.size
        self._cold.read += keys.size
        self._memory.look_ahead()

    def settle(self) -> None:
        """Let rows leave memory, if there are more than the budget says.

        The call that they were needed for is done: it isn't to be asked for again. Where this
        shard has grown by much, those of others do so that its thread uses, too.

        Raises:
            TierLeaveError: if a merge can't read; those that should leave stay.
            FleetError: as ``DiskTier.put`` otherwise.
        """
        try:
            self._let_go()
            self._options.budget.ask_others(self._share)
        except TierReadError as error:
            raise TierLeaveError(path=error.path, reason=error.reason) from error

    def _let_go(self) -> None:
        """Let rows of this shard leave memory.

        Raises:
            FleetError: as ``DiskTier.put``.
        """
        num, capacity = self._residency.num_rows, self.capacity
        if num > max(capacity, self._full_until):
            try:
                tier = self.tier = self._opened() if self.tier is None else self.tier
                self._leave(tier, num - capacity + capacity // _SLACK, capacity)
                self._full_until = 0
            except TierFullError as error:  # they stay, and are tried again when there are more
                self._cold.full += 1
                self._warn(error)
                self._full_until = num + num // _SLACK
        if self.tier is not None and self._num_logged:
            self._merge_for_logged(self.tier)

    def _warn(self, error: TierFullError) -> None:
        """Log, the first time, that memory grows beyond the budget."""
        budget = self._options.budget
        if not budget.is_exceeded:
            budget.is_exceeded = True
            remedy = "make room on that disk; until then rows stay in memory, beyond the budget"
            facts = {"path": error.path, "reason": error.reason, "remedy": remedy}
            log.warning("rows.disk_full", extra={**facts, "budget_bytes": budget.num_bytes})

    def _merge_for_logged(self, tier: DiskTier) -> None:
        """Merge as much as has come to the log: calls that log nothing don't wait for it.

        Raises:
            FleetError: as ``DiskTier.merge_step``.
        """
        steps = -(-self._num_logged // tier.keys_per_step)
        self._num_logged = 0
        with contextlib.suppress(TierFullError):
            while steps and tier.wants_merge:
                tier.merge_step()
                steps -= 1

    def _leave(self, tier: DiskTier, num: int, capacity: int) -> None:
        """Let rows leave memory: so many of the least used.

        Raises:
            TierFullError: if there is no room for them; they stay.
            FleetError: as ``DiskTier.put``.
        """
        most_main = int(capacity * (1 - self._window_share))
        self._fetched.age(self._residency.num_entered, capacity)
        self._residency.keep(self._fetched.waiting)
        slots = self._residency.leaving(num, most_main, self._memory.index.arrays.ids)
        flags = self._flags[slots]
        changed = slots[(flags & _CLEAN) == 0]
        try:
            tier.put(self.keys_at(changed), self.rows_at(changed).view(np.uint32))
        except FleetError:  # they are in memory as before
            self._residency.enter(slots)
            raise
        self._fetched.note_gone(slots)
        self._num_logged += changed.size
        self._cold.rows += slots.size
        self._cold.written += changed.size
        self._cold.dropped += slots.size - changed.size
        self._memory.index.remove(self._memory.index.ids()[slots])
        self._memory.index.release(slots)
        self._flags[slots] = 0
        self._cold.file_bytes, self._cold.memory_bytes = tier.file_bytes, tier.memory_bytes

    @property
    def capacity(self) -> int:
        """Return how many rows may be in memory."""
        budget, share, num_rows = self._options.budget, self._share, self.num_rows
        if num_rows != share.num_rows:
            budget.note(share, num_rows)
        change, capacity = budget.num_changes, self._capacity[1]
        if change != self._capacity[0]:
            rows = budget.rows_of(share)
            capacity = max(1, rows - rows // LOG_SHARE)
            self._capacity = change, capacity
            if self.tier is not None:  # it was opened with another share, maybe a tiny one
                self.tier.limit_memory(self._log_bytes(rows))
        return capacity

    def _opened(self) -> DiskTier:
        """Return a new tier, whose folder goes with this shard.

        Raises:
            FleetError: as ``DiskTier``.
        """
        options, folder = self._options, self._options.folder()
        log_bytes = self._log_bytes(options.budget.rows_of(self._share))
        tier_options = replace(options.tier, memory_bytes=log_bytes, salt=self._salt)
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            tier = DiskTier(folder, self._layout, tier_options)
            stack.pop_all()
        weakref.finalize(self, _discard, tier, folder)
        self._cold.engine = tier.stats().engine
        return tier

    def _log_bytes(self, rows: int) -> int:
        """Return what keys in the log may take, where so many rows may be in memory."""
        return min(MOST_LOG_BYTES, rows * self._share.row_bytes // LOG_SHARE)

    # What happens in memory.

    def note_made(self, slots: NDArray[np.int64]) -> None:
        """Note rows that were made: int64 [n], each once."""
        self._residency.enter(slots)
        self._absent.forget(self.keys_at(slots))

    def note_changed(self, ids: NDArray[np.int64]) -> None:
        """Note that rows in memory were changed: int64 [n]."""
        self._flags[self._memory.index.find(ids, create=False)] &= ~np.uint8(_CLEAN)

    def note_removed(self, slots: NDArray[np.int64]) -> None:
        """Note rows that were removed: int64 [n], each once."""
        self._residency.drop(slots)
        self._fetched.note_gone(slots)
        self._flags[slots] = 0

    def remove_below(self, ids: NDArray[np.int64]) -> None:
        """Remove from the tier what it has of rows, int64 [n], that are in memory.

        Raises:
            FleetError: as ``DiskTier.remove``.
        """
        slots = self._memory.index.find(ids, create=False)
        slots = slots[slots >= 0]
        on_disk = slots[(self._flags[slots] & _ON_DISK) != 0]
        if on_disk.size and self.tier is not None:
            self.tier.remove(each_once(self.keys_at(on_disk)))

    # Reading.

    def keys_at(self, slots: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the keys of rows in memory: uint64 [n]."""
        keys: NDArray[np.uint64] = self._memory.index.arrays.ids[slots]
        return keys

    def rows_at(self, slots: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return copies of rows in memory as they are kept: float32 [n, pitch]."""
        pitch = self._memory.pitch
        rows = np.empty((slots.size, pitch), np.float32)
        gather(self._memory.floats, pitch, slots, rows.reshape(-1), pitch)
        return rows

    def look(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return which keys have a row, and the rows as they are kept; none moves.

        Raises:
            FleetError: as ``DiskTier.read``.
        """
        slots = self._memory.index.find(keys.view(np.int64), create=False)
        rows, found = self.rows_at(slots), slots >= 0
        rest = np.flatnonzero(~found)
        if rest.size and self.tier is not None and self._cold.rows:
            found[rest], cold = self.tier.read(keys[rest])
            rows[rest] = cold.view(np.float32)
        return found, rows

    def count_doubled(self) -> int:
        """Return how many keys are in memory and on disk, and shouldn't be, or on disk twice.

        Raises:
            FleetError: as ``DiskTier.merge`` and ``read``.
        """
        if self.tier is None:
            return 0
        self.tier.merge()
        index = self._memory.index
        slots = np.arange(index.num_slots)[index.live(0, index.num_slots)]
        on_disk = (self._flags[slots] & _ON_DISK) != 0
        found, _ = self.tier.read(self.keys_at(slots[~on_disk]))
        expected = self._cold.rows + int(on_disk.sum())
        return int(found.sum()) + expected - self.tier.parts.num_merged

    # Parts of all rows, for who needs them as they are, by keys: rows move between two parts.

    def place_after(self, start: int, num_rows: int) -> int:
        """Return the place behind a part of some ``num_rows`` rows; fewer, if they are wide.

        Args:
            start: Where it begins: 0, or what this returned before, also if rows moved, came
                or went meanwhile, and if a tier was opened or grew.
            num_rows: How many; with 0 it ends where it begins.
        """
        if not num_rows:
            return start
        num = min(num_rows, max(1, _PART_BYTES // self._share.row_bytes))
        bits = (self.num_rows >> _NUMBER_ROWS).bit_length()
        if self.tier is not None:
            bits = max(bits, self.tier.parts.num_groups.bit_length() - 1)
        return place_after(start, num / max(1, self.num_rows), bits)

    def part(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the ids [n] and rows [n, pitch] between two places.

        Raises:
            FleetError: as ``DiskTier.read``.
        """
        index, keys = self._memory.index, KeyRange.of(start, stop, self._salt)
        slots = keys.find(index.arrays.ids[: index.num_slots])
        ids = index.ids()[slots]
        is_live = index.find(ids, create=False) == slots
        ids, rows = ids[is_live], self.rows_at(slots[is_live])
        if self.tier is None or keys.first >= keys.last:
            return ids, rows
        cold, more = self.tier.parts.within(keys, self._are_cold, self.tier.read)
        return (
            np.concatenate([ids, cold.view(np.int64)]),
            np.concatenate([rows, more.view(np.float32)]),
        )

    def _are_cold(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which of keys, uint64 [n], have no row in memory: bool [n]."""
        are_cold: NDArray[np.bool_] = (
            self._memory.index.find(keys.view(np.int64), create=False) < 0
        )
        return are_cold


def _discard(tier: DiskTier, folder: Path) -> None:
    """Let go of a tier whose shard is gone."""
    tier.close()
    shutil.rmtree(folder, ignore_errors=True)
