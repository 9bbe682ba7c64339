"""A shard of a sparse table whose cold rows are on disk.

The rows that a call is about are brought into memory before it, and then it is as with any
other shard: all computing is the same, and gives the same bits. After the call rows leave
memory, as many as are over the budget: those that changed since they were read go to the tier,
which has the others. As long as all rows fit, there is no tier, and nothing is looked up twice.

If a row is in memory, what the tier has of it is old, and counts no more.

n = ids of a call, D = width of a row, W = floats beside its value.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet_shared.errors import FleetError
from paramfleet_shared.errors.tables import TierRowError
from paramfleet_shared.tables.disk.pages.ranges import END
from paramfleet_shared.tables.disk.shards.fetched import FetchSlice
from paramfleet_shared.tables.disk.shards.images import Source, TieredImage, TieredPages
from paramfleet_shared.tables.disk.shards.moving import (
    BESIDE_BYTES,
    InMemory,
    RowMover,
    TieredOptions,
)
from paramfleet_shared.tables.disk.stats import TierStats
from paramfleet_shared.tables.disk.tier import MAX_ROW_BYTES
from paramfleet_shared.tables.kernels.basics.compiled import as_input
from paramfleet_shared.tables.memory.image import IndexCounts, RowSpace, ShardImage
from paramfleet_shared.tables.rows.cold import Fetch
from paramfleet_shared.tables.rows.evicting import AsOf, is_valued
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.rows.scanning import RowScan
from paramfleet_shared.tables.rowstore import Mark
from paramfleet_shared.tables.sparse import INDEX_BYTES, Places, SparseShard
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["TieredShard", "check_row_width"]


def check_row_width(spec: TableSpec) -> None:
    """Pass if rows of a sparse table fit on a disk.

    Raises:
        TierRowError: if they are too wide.
    """
    row_bytes = RowLayout.of(spec).row_bytes
    if row_bytes > MAX_ROW_BYTES:
        raise TierRowError(table=spec.name, row_bytes=row_bytes, limit=MAX_ROW_BYTES)


_LEAST_LOADED = 256
"""Rows that are loaded at once, where fewer fit into memory."""

_LOOKED_AT = 8
"""Ids of a ``fetch``, wherever their rows are, for each that it may look for on disk: what is
looked at and not taken is looked at again by the next one."""


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
        check_row_width(spec)  # now, and not when memory is full
        super().__init__(spec, shard=shard, max_rows=max_rows, check_memory=check_memory)
        memory = InMemory(
            self._index, self._rows.floats, self._rows.layout.pitch, self._look_ahead
        )
        row_bytes = self.layout.row_bytes + INDEX_BYTES
        self._mover = RowMover(memory, self.layout, row_bytes, options, self.cold)
        self._tiered_images: list[TieredImage] = []
        self._clock = options.tier.clock
        self._slice = FetchSlice()
        self._depth = 0
        """How many calls of this shard are under way, one within the other."""

    # What there is.

    @property
    @override
    def num_rows(self) -> int:
        return self._mover.num_rows

    @property
    @override
    def num_bytes(self) -> int:
        beside = BESIDE_BYTES * self._index.num_slots + self.cold.memory_bytes
        return super().num_bytes + beside

    @property
    @override
    def num_places(self) -> int:
        return END  # places are no numbers of rows, and what moves, comes and goes changes none

    @override
    def place_after(self, start: int, count: int) -> int:
        return self._mover.place_after(start, count)

    @property
    @override
    def work_factor(self) -> int:
        return 1 if self._mover.tier is None else 64

    @property
    @override
    def image_work(self) -> int:
        return self._index.num_rows  # their keys are sorted

    def tier_stats(self) -> TierStats | None:
        """Return what the tier says of itself; None where there is none as yet."""
        tier = self._mover.tier
        return None if tier is None else tier.stats()

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
    def write(self, ids: NDArray[np.int64], values: NDArray[np.float32]) -> None:
        with self._in_memory(ids, changes=True):
            super().write(ids, values)

    @override
    def find(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return numbers of ids' rows, or -1: int64 [n].

        They hold until the next call of this shard, or of another one of its owner.

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
            self._mover.remove_below(ids)
            removed = super().remove(ids)
            self._mover.note_removed(removed)
            return removed

    @override
    def release(self, slots: NDArray[np.int64]) -> None:
        self._index.release(slots)

    @override
    def read_ahead(self, ids: NDArray[np.int64]) -> bool:
        tier = self._mover.tier
        if tier is not None:
            # What is wrong is found again by who needs the rows.
            with contextlib.suppress(FleetError, OSError):
                return self._mover.read_ahead(tier, ids)
        return False

    @override
    def fetch_order(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        tier = self._mover.tier
        if tier is None:
            return ids
        return ids[tier.page_order(as_input(ids, np.int64).view(np.uint64))]

    @override
    def fetch(self, ids: NDArray[np.int64]) -> Fetch:
        tier = self._mover.tier
        if tier is None:
            return Fetch(len(ids))
        begun = self._clock.monotonic()
        num = self._slice.num
        done = self._mover.fetch(tier, ids[: _LOOKED_AT * num], num)
        self._slice.note(self._clock.monotonic() - begun, is_whole=done.taken < len(ids))
        self._mover.settle()
        return done

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
        if not len(ids) == len(values) == len(states):
            return self._load(ids, values, states)  # which says what is wrong
        # A file has up to a million rows: memory that they took at once would stay taken. Fewer
        # at once than fit would be merged into the pages many times.
        most = max(_LEAST_LOADED, self._mover.capacity)
        known = [np.empty(0, np.int64)]
        for first in range(0, len(ids), most):
            some = slice(first, first + most)
            known.append(self._load(ids[some], values[some], states[some]))
        return np.concatenate(known)

    def _load(
        self,
        ids: NDArray[np.int64],
        values: NDArray[np.float32],
        states: NDArray[np.float32],
    ) -> NDArray[np.int64]:
        """Do as ``load``, all at once.

        Raises:
            RowShapeError: if an array has the wrong shape or type.
            CapacityError: if there is no room for the new rows.
            FleetError: as ``DiskTier.put``.
        """
        self._depth += 1
        try:
            known = self._index.find(ids, create=False) >= 0
            SparseShard.assign(self, ids, values, states)
            self._mover.note_changed(ids)
        finally:
            self._depth -= 1
        self._mover.settle()
        return ids[known]

    @override
    def count_doubled(self) -> int:
        """Return how many ids came twice, when all rows are loaded, beside those of ``load``.

        Raises:
            FleetError: as ``DiskTier.merge`` and ``read``.
        """
        return self._mover.count_doubled()

    # Going through all rows.

    @override
    def valued(
        self, start: int, count: int, when: AsOf
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if not is_valued(self.spec):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        ids, rows = self._mover.part(start, start + count)
        return ids, self._eviction_keys(rows, ids, np.arange(len(ids)), when)

    @override
    def export(
        self, start: int, count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
        ids, rows = self._mover.part(start, start + count)
        return ids, *self._columns(rows)

    @override
    def live_ids(self, start: int, count: int) -> NDArray[np.int64]:
        return self._mover.part(start, start + count)[0]

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
        noted, pages = TieredPages.of(self._mover.tier)
        live = self._index.live(0, self._index.num_slots)
        known = np.concatenate([self.ids()[live].view(np.uint64), noted])
        counts = IndexCounts(np.empty(0, np.int64), 0, self._num_pushes)
        source = Source(self._mover.look, self._rows.layout.pitch, self._growth, counts)
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
        tier = self._mover.tier
        if not self._depth and tier is not None:
            self._found = ids, self._mover.bring(tier, ids, changes=changes)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._found = None
        if not self._depth:
            self._mover.settle()

    # What the calls of a shard ask for.

    @override
    def _put_aside(self, ids: NDArray[np.int64]) -> None:
        for reader in self._readers:
            reader.note(ids)
        if self._tiered_images:
            slots = self._index.find(ids, create=False)
            there = slots >= 0
            rows = self._mover.rows_at(slots[there])
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
        self._mover.note_made(slots)
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
