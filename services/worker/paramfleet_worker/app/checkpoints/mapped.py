"""One table of a checkpoint, its files mapped into memory and read in bounded pieces.

A sparse table is read in slices. Which slice has an id follows from the id and the number of
slices alone, as its shard does, so that slices of two checkpoints match whatever number of
servers wrote them. Of an increment's base only the rows are read that count, one byte a row.

Shape legend: n = rows, D = width of a row, W = numbers of a row's optimizer state,
S = columns of state of a dense table.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.checkpoint.columns import arranged, columns_of
from paramfleet_shared.checkpoint.layers import LayerFile
from paramfleet_shared.checkpoint.manifest import FilePart, map_part
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.rows.routing import route
from paramfleet_shared.tables.spec import MAX_NUM_SHARDS, TableSpec

__all__ = ["MappedFile", "MappedTable", "row_bytes", "slices_for"]

PIECE_BYTES = 16 << 20
"""Of rows that are read at a time."""


def row_bytes(spec: TableSpec) -> int:
    """Return what a row takes in memory: its id, values and states; a value if dense."""
    width = RowLayout.of(spec).states.pitch
    return 8 + 4 * (spec.dim + width) if spec.kind == "sparse" else 4 * (1 + width)


def slices_for(num_rows: int, bytes_each: int, *, budget: int) -> int:
    """Return into how many slices a table is divided, so that one fits into a budget.

    Args:
        num_rows: Of the table.
        bytes_each: What a row takes in memory.
        budget: Bytes of one slice, on average.
    """
    return min(MAX_NUM_SHARDS, max(1, -(-num_rows * bytes_each // budget)))


class MappedFile:
    """One file of a table.

    Args:
        layer: The file, and what of it doesn't count.

    Raises:
        CheckpointDamagedError: if it isn't what was saved.
    """

    def __init__(self, layer: LayerFile) -> None:
        self.layer = layer.alone()
        self.file = file = layer.file
        self._spec = spec = layer.spec
        self._columns = columns_of(spec) if file.columns is None else file.columns
        self._part = map_part(layer.folder, file, spec)
        self.counts: NDArray[np.bool_] | None = None
        """bool [n]: which rows count; None if all do."""
        self.num_rows = self._part.num_rows
        """Rows that count."""
        if layer.settled.size:
            pieces = [layer.counts(self.ids[piece]) for piece in self.pieces()]
            self.counts = np.concatenate([np.empty(0, np.bool_), *pieces])
            self.num_rows = int(self.counts.sum())

    @property
    def start(self) -> int:
        """Return the first value's place, of a dense table."""
        return self._part.start

    @property
    def stop(self) -> int:
        """Return the place behind the last value."""
        return self._part.start + self._part.num_rows

    @property
    def ids(self) -> NDArray[np.int64]:
        """Return the ids of a sparse table's file, int64 [n], a view of the file."""
        assert self._part.ids is not None, "a sparse file has ids"
        return self._part.ids

    def part(self, rows: slice | NDArray[np.int64]) -> FilePart:
        """Return some rows, or values, with states in the columns of the rule."""
        part = self._part
        states = part.states[rows] if part.ids is not None else part.states[:, rows]
        return replace(
            part,
            values=part.values[rows],
            states=arranged(self._spec, self._columns, states),
            ids=None if part.ids is None else part.ids[rows],
        )

    def counted(self, piece: slice) -> "slice | NDArray[np.int64]":
        """Return which rows of a piece count, by their places in it."""
        if self.counts is None:
            return slice(None)
        return np.flatnonzero(self.counts[piece])

    def pieces(self) -> Iterator[slice]:
        """Yield all rows, as many at a time as ``PIECE_BYTES`` has."""
        count = max(1, PIECE_BYTES // row_bytes(self._spec))
        for first in range(0, self._part.num_rows, count):
            yield slice(first, min(first + count, self._part.num_rows))


class Found(NamedTuple):
    """Rows of one file that are in one slice."""

    file: int
    """Its place in the list."""

    rows: NDArray[np.int64]
    """Their places in the file, int64 [n]."""


class Slices:
    """The rows of a sparse table's files, slice by slice.

    Args:
        files: Of the table.
        count: How many slices there are.
    """

    def __init__(self, files: Sequence[MappedFile], count: int) -> None:
        self._files = files
        self.count = count
        self.has = np.zeros((len(files), count), np.bool_)
        """bool [files, count]: which file has rows of which slice."""
        for number, file in enumerate(files):
            for piece in file.pieces():
                bounds = route(file.ids[piece][file.counted(piece)], count).offsets
                self.has[number] |= bounds[1:] > bounds[:-1]

    def find(self, number: int) -> Iterator[Found]:
        """Yield where the rows of a slice are."""
        for place in np.flatnonzero(self.has[:, number]).tolist():
            for piece in self._files[place].pieces():
                file = self._files[place]
                counted = file.counted(piece)
                routed = route(file.ids[piece][counted], self.count)
                first, stop = routed.offsets[number : number + 2]
                if first < stop:
                    rows = routed.positions[first:stop].astype(np.int64)
                    if not isinstance(counted, slice):
                        rows = counted[rows]
                    yield Found(place, piece.start + rows)


class MappedTable:
    """One table of a checkpoint.

    Args:
        spec: The table.
        files: Its files.
    """

    def __init__(self, spec: TableSpec, files: Sequence[MappedFile]) -> None:
        self.spec = spec
        self.files = files

    @property
    def num_rows(self) -> int:
        """Return the rows that count of all files; of a dense table, its values."""
        return sum(file.num_rows for file in self.files)

    def slices(self, count: int) -> Slices:
        """Return the rows of a sparse table in so many slices."""
        return Slices(self.files, count)

    def rows_of(self, slices: Slices, number: int) -> FilePart:
        """Return all rows of a slice, with states in the columns of the rule."""
        parts = [self.files[place].part(rows) for place, rows in slices.find(number)]
        width = RowLayout.of(self.spec).states.pitch
        none = np.empty((0, self.spec.dim), np.float32), np.empty((0, width), np.float32)
        ids = [part.ids for part in parts if part.ids is not None]
        return FilePart(
            ids=np.concatenate([np.empty(0, np.int64), *ids]),
            values=np.concatenate([none[0], *(part.values for part in parts)]),
            states=np.concatenate([none[1], *(part.states for part in parts)]),
        )
