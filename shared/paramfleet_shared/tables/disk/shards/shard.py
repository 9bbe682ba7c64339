"""A shard of a sparse table whose cold rows are on disk.

The rows that a call is about are brought into memory before it, and then it is as with any
other shard: all computing is the same, and gives the same bits. After the call rows leave
memory, as many as are over the budget: those that changed since they were read go to the tier,
which has the others. As long as all rows fit, there is no tier, and nothing is looked up twice.

If a row is in memory, what the tier has of it is old, and counts no more.

n = ids of a call, D = width of a row, W = floats beside its value.
"""

import contextlib
import shutil
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet_shared.errors.tables import TierRowError
from paramfleet_shared.tables.disk.access.system import ScratchSystem
from paramfleet_shared.tables.disk.errors import TierFullError
from paramfleet_shared.tables.disk.shards.images import Source, TieredImage, TieredPages
from paramfleet_shared.tables.disk.shards.residency import WINDOW_SHARE, Residency
from paramfleet_shared.tables.disk.stats import TierOptions, TierStats
from paramfleet_shared.tables.disk.tier import MAX_ROW_BYTES, DiskTier
from paramfleet_shared.tables.kernels.basics.compiled import as_input
from paramfleet_shared.tables.kernels.rows import gather, scatter
from paramfleet_shared.tables.memory.budget import MemoryBudget
from paramfleet_shared.tables.memory.image import IndexCounts, RowSpace, ShardImage
from paramfleet_shared.tables.memory.reservation import reserve
from paramfleet_shared.tables.rows.evicting import AsOf, is_valued
from paramfleet_shared.tables.rows.scanning import RowScan
from paramfleet_shared.tables.rowstore import Mark, distinct
from paramfleet_shared.tables.sparse import INDEX_BYTES, Places, SparseShard
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["TieredOptions", "TieredShard"]

BESIDE_BYTES = 16
"""What is known of a row in memory: where it is among the others, and whether it changed."""

_SLACK = 64
"""A part of one in so many of the rows in memory leaves at once, so that puts are large."""

_LOG_SHARE = 16
"""A part of one in so many of the budget is for the keys in the log."""
_MOST_LOG_BYTES = 128 << 20

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


class TieredShard(SparseShard):
    """The rows of one shard, in memory and on disk. One thread owns it.

    Args:
        spec: As of ``SparseShard``, and the next three.
        shard: Which shard, for errors.
        max_rows: Most rows that may be in memory.
        check_memory: Refuses bytes that there is no memory for.
        options: Where rows may be.

    Raises:
        TierRowError: if a row is too wide for a disk.
    """

    has_places = False

    def __init__(
        self,
        spec: TableSpec,
        *,
        options: TieredOptions,
        shard: int = 0,
        max_rows: int | None = None,
        check_memory: Callable[[str, int], None] | None = None,
    ) -> None:
        super().__init__(spec, shard=shard, max_rows=max_rows, check_memory=check_memory)
        if self.layout.row_bytes > MAX_ROW_BYTES:  # now, and not when memory is full
            raise TierRowError(
                table=spec.name, row_bytes=self.layout.row_bytes, limit=MAX_ROW_BYTES
            )
        self._options = options
        most = self._index.max_rows
        self._residency = Residency(most)
        self._flags = reserve(most, np.uint8)
        """Of each row in memory: ``_ON_DISK``, ``_CLEAN``."""
        self._share = options.budget.share(self.layout.row_bytes + INDEX_BYTES + BESIDE_BYTES)
        self._capacity = (-1, 0)
        """At which change of the budget how many rows might be in memory."""
        self._tier: DiskTier | None = None
        self._tiered_images: list[TieredImage] = []
        self._full_until = 0
        """With up to so many rows in memory a disk that was full isn't asked again."""
        self._num_logged = 0
        """Keys that came to the tier's log since it was merged for them."""
        self._depth = 0
        """How many calls of this shard are under way, one within the other."""

    # What there is.

    @property
    @override
    def num_rows(self) -> int:
        return self._index.num_rows + self.cold.rows

    @property
    @override
    def num_bytes(self) -> int:
        beside = BESIDE_BYTES * self._index.num_slots + self.cold.memory_bytes
        return super().num_bytes + beside

    @property
    @override
    def num_places(self) -> int:
        tier = self._tier
        if tier is None:
            return self._index.num_slots
        return self._first_cold_place + tier.parts.num_places

    @property
    @override
    def work_factor(self) -> int:
        return 1 if self._tier is None else 64

    def tier_stats(self) -> TierStats | None:
        """Return what the tier says of itself; None where there is none as yet."""
        return None if self._tier is None else self._tier.stats()

    # Calls about ids: as of any shard, with their rows in memory.

    @override
    def pull(self, ids: NDArray[np.int64], out: NDArray[Any], *, create: bool) -> None:
        with self._in_memory(ids):
            super().pull(ids, out, create=create)

    @override
    def read(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        with self._in_memory(ids):
            return super().read(ids)

    @override
    def push(
        self,
        ids: NDArray[np.int64],
        grads: NDArray[Any],
        *,
        lr: float,
        step: int,
        unique: bool = False,
        now: int = 0,
    ) -> None:
        with self._in_memory(ids, changes=True):
            super().push(ids, grads, lr=lr, step=step, unique=unique, now=now)

    @override
    def add(
        self,
        ids: NDArray[np.int64],
        deltas: NDArray[np.float32],
        has_grown: NDArray[np.bool_],
        *,
        unique: bool = False,
        now: int = 0,
    ) -> None:
        with self._in_memory(ids, changes=True):
            super().add(ids, deltas, has_grown, unique=unique, now=now)

    @override
    def discount(self, ids: NDArray[np.int64], amounts: NDArray[np.float32]) -> None:
        with self._in_memory(ids, changes=True):
            super().discount(ids, amounts)

    @override
    def create(self, ids: NDArray[np.int64]) -> None:
        with self._in_memory(ids):
            super().create(ids)

    @override
    def assign(
        self,
        ids: NDArray[np.int64],
        values: NDArray[np.float32],
        states: NDArray[np.float32],
    ) -> None:
        with self._in_memory(ids, changes=True):
            super().assign(ids, values, states)

    @override
    def find(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return numbers of ids' rows that hold until the next call, or -1: int64 [n].

        Raises:
            RowShapeError: if ``ids`` are not int64 [n].
        """
        with self._in_memory(ids):
            return super().find(ids)

    @override
    def unknown(self, ids: NDArray[np.int64]) -> NDArray[np.uint64]:
        with self._in_memory(ids):
            return super().unknown(ids)

    @override
    def remove(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        with self._in_memory(ids):
            slots = self._index.find(ids, create=False)
            slots = slots[slots >= 0]
            on_disk = slots[(self._flags[slots] & _ON_DISK) != 0]
            if on_disk.size and self._tier is not None:
                gone = distinct(self._keys_at(on_disk))
                self._tier.remove(gone)
                self._num_logged += gone.size
            removed = super().remove(ids)
            self._residency.drop(removed)
            self._flags[removed] = 0
            return removed

    @override
    def release(self, slots: NDArray[np.int64]) -> None:
        self._index.release(slots)

    def prefetch(self, ids: NDArray[np.int64]) -> int:
        """Bring the rows of ids, int64 [n], into memory; return how many were on disk.

        They stay until others come, if there is room for all of them.

        Raises:
            RowShapeError: if ``ids`` are not int64 [n].
            FleetError: as ``DiskTier.read``.
        """
        before = self.cold.read
        try:
            with self._in_memory(ids):
                if self._tier is not None:
                    slots = self._index.find(ids, create=False)
                    self._residency.keep(slots[slots >= 0])
                return self.cold.read - before
        finally:
            self._residency.keep(None)

    @override
    def load(
        self,
        ids: NDArray[np.int64],
        values: NDArray[np.float32],
        states: NDArray[np.float32],
    ) -> NDArray[np.int64]:
        """Take rows of ids that have none, as when a table is restored; none is looked for.

        Returns:
            Those that had one in memory: int64 [m].

        Raises:
            RowShapeError: if an array has the wrong shape or type.
            CapacityError: if there is no room for the new rows.
            FleetError: as ``DiskTier.put``.
        """
        self._depth += 1
        try:
            known = self._index.find(ids, create=False) >= 0
            SparseShard.assign(self, ids, values, states)
            self._flags[self._index.find(ids, create=False)] &= ~np.uint8(_CLEAN)
        finally:
            self._depth -= 1
        self._settle()
        return ids[known]

    @override
    def count_doubled(self) -> int:
        """Return how many ids came twice, when all rows are loaded, beside those of ``load``.

        Raises:
            FleetError: as ``DiskTier.merge`` and ``read``.
        """
        tier = self._tier
        if tier is None:
            return 0
        tier.merge()
        slots = np.arange(self._index.num_slots)[self._index.live(0, self._index.num_slots)]
        on_disk = (self._flags[slots] & _ON_DISK) != 0
        found, _ = tier.read(self._keys_at(slots[~on_disk]))
        return int(found.sum()) + self.cold.rows + int(on_disk.sum()) - tier.parts.num_merged

    # Going through all rows.

    @override
    def valued(
        self, start: int, count: int, when: AsOf
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if not is_valued(self.spec):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        ids, rows = self._part(start, start + count)
        return ids, self._eviction_keys(rows, ids, np.arange(len(ids)), when)

    @override
    def export(
        self, start: int, count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
        ids, rows = self._part(start, start + count)
        return ids, *self._columns(rows)

    @override
    def live_ids(self, start: int, count: int) -> NDArray[np.int64]:
        return self._part(start, start + count)[0]

    @override
    def image(
        self, *, save: str = "", since: str = "", chain: str = "checkpoints"
    ) -> ShardImage:
        """Take an image of the rows; changes aren't marked, so each save is a whole one."""
        image = self._new_image(keeps=True)
        self._tiered_images.append(image)
        return image

    @override
    def scan(self) -> RowScan:
        return _Scan(self, self._new_image(keeps=False))

    def _new_image(self, *, keeps: bool) -> TieredImage:
        noted, pages = TieredPages.of(self._tier)
        live = self._index.live(0, self._index.num_slots)
        known = np.concatenate([self.ids()[live].view(np.uint64), noted])
        counts = IndexCounts(np.empty(0, np.int64), 0, self._num_pushes)
        source = Source(self._look, self._rows.layout.pitch, self._growth, counts)
        return TieredImage(known, pages, source, keeps=keeps)

    @override
    def read_image(
        self, image: ShardImage, start: int, count: int, *, changed: bool = False
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
        assert isinstance(image, TieredImage), "it is of this shard"
        ids, rows = image.read_part(start, start + count)
        return ids, *self._columns(rows)

    @override
    def copy_image(self, image: ShardImage, start: int, count: int, space: RowSpace) -> int:
        raise AssertionError("how many rows are in so many places isn't known before")

    @override
    def end_image(self, image: ShardImage) -> None:
        assert isinstance(image, TieredImage), "it is of this shard"
        image.end()
        self._tiered_images = [each for each in self._tiered_images if each is not image]

    @override
    def restore(self, places: Places) -> None:
        """Take over how values are rounded; where rows were says nothing here."""
        self._num_pushes = places.num_pushes

    # Between memory and disk.

    @contextlib.contextmanager
    def _in_memory(self, ids: NDArray[np.int64], *, changes: bool = False) -> Iterator[None]:
        """Have the rows of ids, int64 [n], in memory during a block; others may leave after it.

        Args:
            ids: They.
            changes: Whether the rows are changed.

        Raises:
            RowShapeError: if ``ids`` are not int64 [n].
            FleetError: as ``DiskTier.read`` and ``put``.
        """
        if self._depth or self._tier is None:
            self._depth += 1
        else:
            self._bring(self._tier, ids, changes=changes)
            self._depth = 1
        try:
            yield
        finally:
            self._depth -= 1
        if not self._depth:
            self._settle()

    def _bring(self, tier: DiskTier, ids: NDArray[np.int64], *, changes: bool) -> None:
        """Read those rows of ids that are on disk alone.

        Raises:
            RowShapeError: if ``ids`` are not int64 [n].
            FleetError: as ``DiskTier.read``.
        """
        slots = self._index.find(ids, create=False)
        keys = as_input(ids, np.int64).view(np.uint64)
        missing = distinct(keys[slots < 0])
        self._residency.touch(keys, slots)
        if missing.size and self.cold.rows:
            self.cold.wanted += missing.size
            found, rows = tier.read(missing)
            self._come(missing[found], rows[found])
            if changes and found.any():
                slots = self._index.find(ids, create=False)
        if changes:
            self._flags[slots[slots >= 0]] &= ~np.uint8(_CLEAN)

    def _come(self, keys: NDArray[np.uint64], rows: NDArray[np.uint32]) -> None:
        """Put rows that were on disk alone into memory."""
        if not keys.size:
            return
        slots = self._index.find(keys.view(np.int64), create=True)
        flat, pitch = as_input(rows.view(np.float32), np.float32), self._rows.layout.pitch
        scatter(self._rows.floats, pitch, slots, flat.reshape(-1), (0, pitch))
        self._flags[slots] = _ON_DISK | _CLEAN
        self._residency.enter(slots)
        self.cold.rows -= keys.size
        self.cold.read += keys.size
        self._look_ahead()

    def _settle(self) -> None:
        """Let rows leave memory, if there are more than the budget says.

        Raises:
            FleetError: as ``DiskTier.put``.
        """
        num, capacity = self._residency.num_rows, self._rows_in_memory()
        if num > max(capacity, self._full_until):
            try:
                tier = self._tier = self._opened() if self._tier is None else self._tier
                self._leave(tier, num - capacity + capacity // _SLACK, capacity)
                self._full_until = 0
            except TierFullError:  # they stay, and are tried again when there are more
                self.cold.full += 1
                self._full_until = num + num // _SLACK
        if self._tier is not None and self._num_logged:
            self._merge_for_logged(self._tier)

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
        slots = self._residency.leaving(num, most_main, self._index.arrays.ids)
        flags = self._flags[slots]
        changed = slots[(flags & _CLEAN) == 0]
        try:
            tier.put(self._keys_at(changed), self._rows_at(changed).view(np.uint32))
        except TierFullError:
            self._residency.enter(slots)
            raise
        self._num_logged += changed.size
        self.cold.rows += slots.size
        self.cold.written += changed.size
        self.cold.dropped += slots.size - changed.size
        self._index.remove(self.ids()[slots])
        self._index.release(slots)
        self._flags[slots] = 0
        self.cold.file_bytes, self.cold.memory_bytes = tier.file_bytes, tier.memory_bytes

    def _rows_in_memory(self) -> int:
        """Return how many rows may be in memory."""
        budget, share, num_rows = self._options.budget, self._share, self.num_rows
        if num_rows != share.num_rows:
            budget.note(share, num_rows)
        change, capacity = budget.num_changes, self._capacity[1]
        if change != self._capacity[0]:
            rows = budget.rows_of(share)
            capacity = max(1, rows - rows // _LOG_SHARE)
            self._capacity = change, capacity
        return capacity

    def _opened(self) -> DiskTier:
        """Return a new tier, whose folder goes with this shard.

        Raises:
            FleetError: as ``DiskTier``.
        """
        options, folder = self._options, self._options.folder()
        own_bytes = options.budget.rows_of(self._share) * self._share.row_bytes
        log_bytes = min(_MOST_LOG_BYTES, own_bytes // _LOG_SHARE)
        tier = DiskTier(folder, self.layout, replace(options.tier, memory_bytes=log_bytes))
        weakref.finalize(self, _discard, tier, folder)
        self.cold.engine = tier.stats().engine
        return tier

    def _keys_at(self, slots: NDArray[np.int64]) -> NDArray[np.uint64]:
        keys: NDArray[np.uint64] = self._index.arrays.ids[slots]
        return keys

    def _rows_at(self, slots: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return copies of rows in memory as they are kept: float32 [n, pitch]."""
        pitch = self._rows.layout.pitch
        rows = np.empty((slots.size, pitch), np.float32)
        gather(self._rows.floats, pitch, slots, rows.reshape(-1), pitch)
        return rows

    def _look(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return which keys have a row, and the rows as they are kept; none moves.

        Raises:
            FleetError: as ``DiskTier.read``.
        """
        slots = self._index.find(keys.view(np.int64), create=False)
        rows, found = self._rows_at(slots), slots >= 0
        rest = np.flatnonzero(~found)
        if rest.size and self._tier is not None and self.cold.rows:
            found[rest], cold = self._tier.read(keys[rest])
            rows[rest] = cold.view(np.float32)
        return found, rows

    # Parts of all rows, for who needs them as they are: those in memory, then the tier's.

    @property
    def _first_cold_place(self) -> int:
        return -(-self._index.num_slots // _MEMORY_PLACES) * _MEMORY_PLACES

    def _part(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the ids [n] and rows [n, pitch] of some places.

        Raises:
            FleetError: as ``DiskTier.read``.
        """
        live = self._index.live(start, stop) if start < self._index.num_slots else slice(0, 0)
        ids, rows = self.ids()[live], self._floats[live]
        first = self._first_cold_place
        if self._tier is None or stop <= first:
            return ids.copy(), rows.copy()
        tier = self._tier
        keys, cold = tier.parts.at_places(start - first, stop - first, tier.read)
        is_cold = self._index.find(keys.view(np.int64), create=False) < 0
        return (
            np.concatenate([ids, keys[is_cold].view(np.int64)]),
            np.concatenate([rows, cold[is_cold].view(np.float32)]),
        )

    # What the calls of a shard ask for.

    @override
    def _put_aside(self, ids: NDArray[np.int64]) -> None:
        for reader in self._readers:
            reader.note(ids)
        if self._tiered_images:
            slots = self._index.find(ids, create=False)
            there = slots >= 0
            rows = self._rows_at(slots[there])
            for image in self._tiered_images:
                image.note_changing(np.ascontiguousarray(ids[there]), rows)

    @override
    def _made_since(self, mark: Mark) -> None:
        if mark == self._index.mark():
            return
        made = [
            np.arange(each.start, each.stop) if isinstance(each, slice) else each
            for each in self._index.made_since(mark)
        ]
        slots = np.concatenate([np.empty(0, np.int64), *made])
        if not slots.size:
            return
        ids = self.ids()[slots]
        if self.admission is not None:
            self.admission.note_made(ids)
        for image in self._tiered_images:
            image.note_made(ids)
        self._residency.enter(slots)
        self._look_ahead()


class _Scan:
    """Implements ``RowScan`` for a shard with rows on disk."""

    def __init__(self, shard: TieredShard, image: TieredImage) -> None:
        self._shard = shard
        self._image = image
        self.num_places = image.num_places

    def read(self, start: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        ids, values, _ = self._shard.read_image(self._image, start, count)
        return ids, values

    def end(self) -> None:
        self._image.end()


def _discard(tier: DiskTier, folder: Path) -> None:
    """Let go of a tier whose shard is gone."""
    tier.close()
    shutil.rmtree(folder, ignore_errors=True)
