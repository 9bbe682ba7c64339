"""All tables of a server as they were at one moment, read later beside the training.

The moment is one in the order of commands: owners take their images between the jobs of the
commands before and those of the commands after. Rows that change before they are copied are put
aside by their shard; dense ranges, which every step changes whole, are copied at once. Where
there is no memory for that, the caller lets nobody change them until they are read.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.tables.blocks import Block
from paramfleet_pserver.tables.owners import Job, Owners
from paramfleet_pserver.tables.table import DenseTable, SparseTable
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.checkpoint.manifest import FilePart
from paramfleet_shared.tables.memory.image import RowSpace, ShardImage
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.values.spans import MissedUpdates

__all__ = [
    "DenseImage",
    "Marks",
    "Segment",
    "SparseImage",
    "StoreImage",
    "plan_chunks",
    "row_bytes_of",
]

SLICE_BYTES = 2 << 20
"""Of rows that are copied at a time: requests wait for their owner meanwhile."""

_SCANNED = 1 << 16
"""Places of rows that are looked at in one job, for those that changed."""

_Rows = tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]
"""Ids, values and states."""


class Segment(NamedTuple):
    """Neighbouring places of rows of one block."""

    block: int
    start: int
    num_rows: int


def row_bytes_of(spec: TableSpec) -> int:
    """Return the bytes of a row and its id, as they are read: value and states in float32."""
    return 8 + 4 * (spec.dim + RowLayout.of(spec).states.pitch)


def plan_chunks(num_rows: Iterable[int], chunk_rows: int) -> list[list[Segment]]:
    """Divide the rows of each block into files of at most ``chunk_rows``.

    Returns:
        For each file the segments it holds; no file is empty.
    """
    chunks: list[list[Segment]] = []
    num_left = 0
    for block, rows in enumerate(num_rows):
        start = 0
        while start < rows:
            if num_left == 0:
                chunks.append([])
                num_left = chunk_rows
            count = min(num_left, rows - start)
            chunks[-1].append(Segment(block, start, count))
            start += count
            num_left -= count
    return chunks


class Marks(NamedTuple):
    """How an image marks rows that change after it, and tells those that changed before."""

    save: str = ""
    """The name of the save that it is for, if rows are to be marked."""
    since: str = ""
    """The name of an earlier one: rows that changed since are told from the others."""
    chain: str = "checkpoints"
    """Of which saves both are."""


class StoreImage:
    """The tables of a server at the moment at which it was begun.

    Args:
        store: The tables.
        owners: Who works on them.
        marks: How rows are marked that change later.
    """

    def __init__(
        self, store: TableStore, owners: Owners, *, marks: "Marks | None" = None
    ) -> None:
        self.tables: list[SparseImage | DenseImage] = []
        self.versions = {table.spec.name: table.num_updates for table in store}
        """Updates of each table."""
        self.missed = {
            table.spec.name: MissedUpdates.joined([(table.start, table.missed)])
            for table in store
            if isinstance(table, DenseTable)
        }
        """How many of them had no gradient for values of dense tables, by their places in the
        whole table."""
        for table in store:
            if isinstance(table, SparseTable):
                self.tables.append(SparseImage(table, owners, marks=marks or Marks()))
            elif isinstance(table, DenseTable):
                copies = store.has_memory(table.spec.name, table.num_bytes)
                self.tables.append(DenseImage(table, owners, copies=copies))
        self.is_apart = all(table.is_apart for table in self.tables)
        """Whether tables may change from when the image has begun until it is read."""
        self._owners = owners
        jobs = [job for table in self.tables for job in table.begin_jobs()]
        self._begun = owners.start(jobs)

    async def begun(self) -> None:
        """Return when the moment is over: what is applied from now on isn't in the image."""
        await asyncio.shield(self._begun)

    @property
    def knows_changes(self) -> bool:
        """Return whether it is known of all rows if they changed; the image must have begun."""
        sparse = [table for table in self.tables if isinstance(table, SparseImage)]
        return all(table.knows_changes for table in sparse)

    async def end(self) -> None:
        """Put no rows aside any more."""
        await self._owners.run([job for table in self.tables for job in table.end_jobs()])


class SparseImage:
    """A sparse table's rows at one moment.

    Args:
        table: It.
        owners: Who copies rows.
        marks: As of ``StoreImage``.
    """

    is_apart = True

    def __init__(self, table: SparseTable, owners: Owners, *, marks: "Marks") -> None:
        self.spec = table.spec
        self.row_bytes = row_bytes_of(table.spec)
        self._marks = marks
        self._owners = owners
        self._blocks = table.blocks
        self._images = dict[int, ShardImage]()
        """By block, each from when its owner has taken it."""

    def begin_jobs(self) -> list[Job]:
        """Return what takes the image of each block."""

        def take(index: int, block: Block) -> None:
            self._images[index] = block.rows.image(**self._marks._asdict())

        return [
            Job(block.owner, block.rows.image_work, partial(take, index, block))
            for index, block in enumerate(self._blocks)
        ]

    def end_jobs(self) -> list[Job]:
        """Return what ends the image of each block."""
        return [
            Job(block.owner, 0, partial(self._end, index, block))
            for index, block in enumerate(self._blocks)
        ]

    def _end(self, index: int, block: Block) -> None:
        """End a block's image; its owner may have taken it after the end was asked for."""
        image = self._images.pop(index, None)
        if image is not None:
            block.rows.end_image(image)

    def num_places(self) -> list[int]:
        """Return how many places of rows there are in each block."""
        return [self._images[index].num_places for index in range(len(self._blocks))]

    @property
    def knows_changes(self) -> bool:
        """Return whether it is known which rows changed since the earlier save."""
        return all(image.changed is not None for image in self._images.values())

    def removed(self) -> NDArray[np.int64]:
        """Return the ids of rows that were removed since, int64 [n], each once."""
        changes = [image.changed for image in self._images.values()]
        ids = [np.empty(0, np.int64), *(each.removed for each in changes if each is not None)]
        return np.concatenate(ids)

    async def changed_parts(self, chunk_rows: int) -> AsyncIterator[FilePart]:
        """Yield the rows that changed since the earlier save, at least so many at a time.

        Raises:
            TableMemoryError: if there was no memory for rows that changed.
        """
        pieces: list[_Rows] = []
        num_rows = 0
        for index, block in enumerate(self._blocks):
            image = self._images[index]
            for start in range(0, image.num_places, _SCANNED):

                def copy(start: int = start) -> None:
                    read = block.rows.read_image  # noqa: B023
                    pieces.append(read(image, start, _SCANNED, changed=True))  # noqa: B023

                await self._owners.run([Job(block.owner, _SCANNED // 64, copy)])
                num_rows += len(pieces[-1][0])
                if num_rows >= chunk_rows:
                    yield await asyncio.to_thread(_joined, pieces)
                    pieces, num_rows = [], 0
        if num_rows:
            yield await asyncio.to_thread(_joined, pieces)

    def _row_space(self, memory: NDArray[np.uint8], num_rows: int) -> RowSpace:
        """Return room for so many rows in memory that has ``row_bytes`` for each."""
        dim, width = self.spec.dim, RowLayout.of(self.spec).states.pitch
        ids, values, states, _ = np.split(
            memory, np.cumsum(num_rows * np.array([8, 4 * dim, 4 * width]))
        )
        return RowSpace(
            ids.view(np.int64),
            values.view(np.float32).reshape(num_rows, dim),
            states.view(np.float32).reshape(num_rows, width),
        )

    async def read(self, chunk: Sequence[Segment], memory: NDArray[np.uint8]) -> FilePart:
        """Return the rows of some segments, which come in order, some at a time.

        Args:
            chunk: The segments.
            memory: Where they are copied to: ``row_bytes`` for each row.

        Raises:
            TableMemoryError: if there was no memory for rows that changed.
        """
        if not all(self._blocks[segment.block].rows.has_places for segment in chunk):
            return await self._read_by_key(chunk)
        space = self._row_space(memory, sum(segment.num_rows for segment in chunk))
        num_read = 0
        for block, start, num_rows in chunk:
            rows, image = self._blocks[block].rows, self._images[block]
            most = max(1, SLICE_BYTES // rows.layout.row_bytes)
            for first in range(start, start + num_rows, most):
                count = min(most, start + num_rows - first)

                def copy(first: int = first, count: int = count) -> None:
                    nonlocal num_read
                    num_read += rows.copy_image(image, first, count, space.part(num_read))  # noqa: B023

                await self._owners.run([Job(self._blocks[block].owner, count, copy)])
        return FilePart(**space.part(0, num_read)._asdict())

    async def _read_by_key(self, chunk: Sequence[Segment]) -> FilePart:
        """As ``read``, of rows without places: how many are in some isn't known before.

        Raises:
            TableMemoryError: if there was no memory for rows that changed.
        """
        pieces = [_no_rows(self.spec)]
        for index, start, num_rows in chunk:
            block, image = self._blocks[index], self._images[index]
            most = max(1, SLICE_BYTES // block.rows.layout.row_bytes)
            for first in range(start, start + num_rows, most):
                count = min(most, start + num_rows - first)

                def copy(first: int = first, count: int = count) -> None:
                    pieces.append(block.rows.read_image(image, first, count))  # noqa: B023

                await self._owners.run([Job(block.owner, block.work(count), copy)])
        return await asyncio.to_thread(_joined, pieces)


class DenseImage:
    """A dense table's range at one moment.

    Args:
        table: It.
        owners: Who copies values.
        copies: Whether it is copied at once; else it must not change until it is read.
    """

    def __init__(self, table: DenseTable, owners: Owners, *, copies: bool) -> None:
        self.spec = table.spec
        self.num_rows = table.num_rows
        self.is_apart = copies
        self._table = table
        self._owners = owners
        self._range = table.range
        self._copy: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None

    def begin_jobs(self) -> list[Job]:
        """Return what copies the range, if it is to be."""

        def copy() -> None:
            self._copy = self._range.values.copy(), self._range.states.copy()

        return [self._table.job(copy)] if self.is_apart else []

    def end_jobs(self) -> list[Job]:
        """Return what lets go of the copy, which its owner may not have made as yet."""

        def drop() -> None:
            self._copy = None

        return [self._table.job(drop, num_values=0)] if self.is_apart else []

    async def read(self, where: slice) -> FilePart:
        """Return some of the values [m] with their states [S, m]."""
        start = self._table.start + where.start
        if self._copy is not None:
            values, states = self._copy
            return FilePart(values=values[where], states=states[:, where], start=start)
        found: list[FilePart] = []

        def copy() -> None:
            values, states = self._range.values[where], self._range.states[:, where]
            found.append(FilePart(values=values.copy(), states=states.copy(), start=start))

        await self._owners.run([self._table.job(copy, num_values=where.stop - where.start)])
        return found[0]


def _no_rows(spec: TableSpec) -> _Rows:
    width = RowLayout.of(spec).states.pitch
    return (
        np.empty(0, np.int64),
        np.empty((0, spec.dim), np.float32),
        np.empty((0, width), np.float32),
    )


def _joined(pieces: list[_Rows]) -> FilePart:
    ids, values, states = zip(*pieces, strict=True)
    return FilePart(
        ids=np.concatenate(ids), values=np.concatenate(values), states=np.concatenate(states)
    )
