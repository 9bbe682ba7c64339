"""Rows of a shard between memory and disk: brought in before a call, let go after it.

As long as all rows fit, there is no tier. If a row is in memory, what the tier has of it is
old, and counts no more. n = rows of a call, pitch = words of a row.
"""

import contextlib
import shutil
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.disk.access.system import ScratchSystem
from paramfleet_shared.tables.disk.errors import TierFullError
from paramfleet_shared.tables.disk.shards.residency import WINDOW_SHARE, Residency
from paramfleet_shared.tables.disk.stats import TierOptions
from paramfleet_shared.tables.disk.tier import DiskTier
from paramfleet_shared.tables.kernels.basics.compiled import as_input
from paramfleet_shared.tables.kernels.rows import gather, scatter
from paramfleet_shared.tables.memory.budget import MemoryBudget
from paramfleet_shared.tables.memory.reservation import reserve
from paramfleet_shared.tables.memory.slot_index import SlotIndex, distinct
from paramfleet_shared.tables.rows.cold import ColdRows
from paramfleet_shared.tables.rows.layout import RowLayout

__all__ = [
    "BESIDE_BYTES",
    "LOG_SHARE",
    "MOST_LOG_BYTES",
    "InMemory",
    "RowMover",
    "TieredOptions",
]

BESIDE_BYTES = 16
"""What is known of a row in memory: where it is among the others, and whether it changed."""

_SLACK = 64
"""A part of one in so many of the rows in memory leaves at once, so that puts are large."""

LOG_SHARE = 16
"""A part of one in so many of the budget is for the keys in the log."""
MOST_LOG_BYTES = 128 << 20

_MEMORY_PLACES = 1 << 18
"""Places of ``valued`` are counted in multiples of this, so that a few more change nothing."""

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
        self._flags = reserve(most, np.uint8)
        """Of each row in memory: ``_ON_DISK``, ``_CLEAN``."""
        self._share = options.budget.share(row_bytes + BESIDE_BYTES)
        self._capacity = (-1, 0)
        """At which change of the budget how many rows might be in memory."""
        self.tier: DiskTier | None = None
        """None as long as all rows have fitted."""
        self._full_until = 0
        """With up to so many rows in memory a disk that was full isn't asked again."""
        self._num_logged = 0
        """Keys that came to the tier's log since it was merged for them."""

    @property
    def num_rows(self) -> int:
        """Return how many rows there are, in memory and on disk."""
        return self._memory.index.num_rows + self._cold.rows

    # Moving.

    def bring(self, tier: DiskTier, ids: NDArray[np.int64], *, changes: bool) -> None:
        """Read those rows of ids that are on disk alone.

        Args:
            tier: Where they are.
            ids: int64 [n]; an id may occur many times.
            changes: Whether the rows are about to be changed.

        Raises:
            RowShapeError: if ``ids`` are not int64 [n].
            FleetError: as ``DiskTier.read``.
        """
        slots = self._memory.index.find(ids, create=False)
        keys = as_input(ids, np.int64).view(np.uint64)
        missing = distinct(keys[slots < 0])
        self._residency.touch(keys, slots)
        if missing.size and self._cold.rows:
            self._cold.wanted += missing.size
            found, rows = tier.read(missing)
            self._come(missing[found], rows[found])
            if changes and found.any():
                slots = self._memory.index.find(ids, create=False)
        if changes:
            self._flags[slots[slots >= 0]] &= ~np.uint8(_CLEAN)

    def _come(self, keys: NDArray[np.uint64], rows: NDArray[np.uint32]) -> None:
        """Put rows that were on disk alone into memory."""
        if not keys.size:
            return
        slots = self._memory.index.find(keys.view(np.int64), create=True)
        flat, pitch = as_input(rows.view(np.float32), np.float32), self._memory.pitch
        scatter(self._memory.floats, pitch, slots, flat.reshape(-1), (0, pitch))
        self._flags[slots] = _ON_DISK | _CLEAN
        self._residency.enter(slots)
        self._cold.rows -= keys.size
        self._cold.read += keys.size
        self._memory.look_ahead()

    def settle(self) -> None:
        """Let rows leave memory, if there are more than the budget says.

        Raises:
            FleetError: as ``DiskTier.put``.
        """
        num, capacity = self._residency.num_rows, self._rows_in_memory()
        if num > max(capacity, self._full_until):
            try:
                tier = self.tier = self._opened() if self.tier is None else self.tier
                self._leave(tier, num - capacity + capacity // _SLACK, capacity)
                self._full_until = 0
            except TierFullError:  # they stay, and are tried again when there are more
                self._cold.full += 1
                self._full_until = num + num // _SLACK
        if self.tier is not None and self._num_logged:
            self._merge_for_logged(self.tier)

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
        most_main = int(capacity * (1 - WINDOW_SHARE))
        slots = self._residency.leaving(num, most_main, self._memory.index.arrays.ids)
        flags = self._flags[slots]
        changed = slots[(flags & _CLEAN) == 0]
        try:
            tier.put(self.keys_at(changed), self.rows_at(changed).view(np.uint32))
        except TierFullError:
            self._residency.enter(slots)
            raise
        self._num_logged += changed.size
        self._cold.rows += slots.size
        self._cold.written += changed.size
        self._cold.dropped += slots.size - changed.size
        self._memory.index.remove(self._memory.index.ids()[slots])
        self._memory.index.release(slots)
        self._flags[slots] = 0
        self._cold.file_bytes, self._cold.memory_bytes = tier.file_bytes, tier.memory_bytes

    def _rows_in_memory(self) -> int:
        """Return how many rows may be in memory."""
        budget, share, num_rows = self._options.budget, self._share, self.num_rows
        if num_rows != share.num_rows:
            budget.note(share, num_rows)
        change, capacity = budget.num_changes, self._capacity[1]
        if change != self._capacity[0]:
            rows = budget.rows_of(share)
            capacity = max(1, rows - rows // LOG_SHARE)
            self._capacity = change, capacity
        return capacity

    def _opened(self) -> DiskTier:
        """Return a new tier, whose folder goes with this shard.

        Raises:
            FleetError: as ``DiskTier``.
        """
        options, folder = self._options, self._options.folder()
        own_bytes = options.budget.rows_of(self._share) * self._share.row_bytes
        log_bytes = min(MOST_LOG_BYTES, own_bytes // LOG_SHARE)
        tier = DiskTier(folder, self._layout, replace(options.tier, memory_bytes=log_bytes))
        weakref.finalize(self, _discard, tier, folder)
        self._cold.engine = tier.stats().engine
        return tier

    # What happens in memory.

    def keep(self, ids: NDArray[np.int64] | None) -> None:
        """Let rows of ids, int64 [n], leave last, until ``keep`` is called with None."""
        if ids is None:
            self._residency.keep(None)
        elif self.tier is not None:
            slots = self._memory.index.find(ids, create=False)
            self._residency.keep(slots[slots >= 0])

    def note_made(self, slots: NDArray[np.int64]) -> None:
        """Note rows that were made: int64 [n], each once."""
        self._residency.enter(slots)

    def note_changed(self, ids: NDArray[np.int64]) -> None:
        """Note that rows in memory were changed: int64 [n]."""
        self._flags[self._memory.index.find(ids, create=False)] &= ~np.uint8(_CLEAN)

    def note_removed(self, slots: NDArray[np.int64]) -> None:
        """Note rows that were removed: int64 [n], each once."""
        self._residency.drop(slots)
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
            self.tier.remove(distinct(self.keys_at(on_disk)))

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

    # Parts of all rows, for who needs them as they are: those in memory, then the tier's.

    @property
    def num_places(self) -> int:
        """Return how many places ``part`` goes through."""
        if self.tier is None:
            return self._memory.index.num_slots
        return self._first_cold_place + self.tier.parts.num_places

    @property
    def _first_cold_place(self) -> int:
        return -(-self._memory.index.num_slots // _MEMORY_PLACES) * _MEMORY_PLACES

    def part(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the ids [n] and rows [n, pitch] of some places.

        Raises:
            FleetError: as ``DiskTier.read``.
        """
        index, floats = self._memory.index, self._memory.floats
        live = index.live(start, stop) if start < index.num_slots else slice(0, 0)
        ids, rows = index.ids()[live], floats.reshape(-1, self._memory.pitch)[live]
        first = self._first_cold_place
        if self.tier is None or stop <= first:
            return ids.copy(), rows.copy()
        tier = self.tier
        keys, cold = tier.parts.at_places(start - first, stop - first, tier.read)
        is_cold = index.find(keys.view(np.int64), create=False) < 0
        return (
            np.concatenate([ids, keys[is_cold].view(np.int64)]),
            np.concatenate([rows, cold[is_cold].view(np.float32)]),
        )


def _discard(tier: DiskTier, folder: Path) -> None:
    """Let go of a tier whose shard is gone."""
    tier.close()
    shutil.rmtree(folder, ignore_errors=True)
