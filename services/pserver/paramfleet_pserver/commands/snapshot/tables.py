"""Images of tables: what a snapshot has of them, as it was at one moment.

A table's counters are read at once. Rows that change before they are copied are put aside by
their shard; a dense range, which every step changes whole, is copied, if there is memory.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.commands.snapshot.arrays import table_of
from paramfleet_pserver.tables.blocks import Block
from paramfleet_pserver.tables.owners import Job
from paramfleet_pserver.tables.parts import Update
from paramfleet_pserver.tables.table import DenseTable, SparseTable, Table
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.memory.image import ShardImage
from paramfleet_shared.tables.rows.admission import SketchPages

__all__ = ["DenseImage", "Piece", "SparseImage"]

PLACE_BYTES = 9
"""What is said of a place: an id, and whether there is a row."""

ROW_OF_BYTES = 512
"""Bytes that cost about as much to copy as a row: by these the length of a job is guessed."""


class Piece(NamedTuple):
    """A message that an owner makes, when it has come to it."""

    owner: int
    num_bytes: int
    """About how much it copies."""
    make: Callable[[], Message | None]
    """Returns None where there is nothing to say."""

    def job(self, found: list[Message]) -> Job:
        """Return the work, which adds the message to ``found``."""

        def act() -> None:
            message = self.make()
            if message is not None:
                found.append(message)

        return Job(self.owner, self.num_bytes // ROW_OF_BYTES, act)


class SparseImage:
    """A sparse table at the moment at which its owners have run ``begin_jobs``.

    Args:
        table: It; none of its changes is under way.
        piece_bytes: About how much one message has.
    """

    def __init__(self, table: SparseTable, piece_bytes: int) -> None:
        self.about = _about(table, {})
        """What is known of it beside rows."""
        self._name = table.spec.name
        self._blocks = table.blocks
        self._piece_bytes = piece_bytes
        self._images = dict[int, ShardImage]()
        """By block, each from when its owner has taken it until it is read."""
        self._sketches = dict[int, dict[int, SketchPages]]()
        """By block and shard, the same; of ids without a row."""

    def begin_jobs(self) -> list[Job]:
        """Return what takes the image of each block."""

        def take(index: int, block: Block) -> None:
            self._images[index] = block.rows.image()
            if block.rows.admission is not None:
                self._sketches[index] = block.rows.admission.sketches()

        jobs = []
        for index, block in enumerate(self._blocks):
            work = block.rows.image_work
            jobs.append(Job(block.owner, work, partial(take, index, block)))
        return jobs

    def end_jobs(self) -> list[Job]:
        """Return what puts no rows aside any more."""
        return [
            Job(block.owner, 0, partial(self._end, index))
            for index, block in enumerate(self._blocks)
        ]

    def pieces(self) -> Iterator[Piece | Message]:
        """Yield the places of each block's rows, and then the rows; each once, in order."""
        for index, block in enumerate(self._blocks):
            at = {"table": self._name, "block": index}
            num_places, counts = self._images[index].num_places, self._images[index].counts
            size = max(1, self._piece_bytes // PLACE_BYTES)
            has_places = block.rows.has_places
            for start in range(0, num_places if has_places else 0, size):
                make = partial(self._places, index, start, size, at)
                yield Piece(block.owner, PLACE_BYTES * size, make)
            size = max(1, self._piece_bytes // counts.free.itemsize)
            for start in range(0, len(counts.free), size):
                yield Message(
                    fields={"kind": "free", **at, "start": start},
                    tensors={"free": counts.free[start : start + size]},
                )
            about: dict[str, Any] = {"turns": counts.num_turns, "pushes": counts.num_pushes}
            if not has_places:
                about["has_places"] = False
            yield Message(fields={"kind": "index", **at, **about})
            yield from self._sketch_pieces(index, at)
            row_bytes = block.rows.layout.row_bytes
            size = max(1, self._piece_bytes // row_bytes)
            for start in range(0, num_places, size):
                read = partial(self._rows, index, start, size, at)
                yield Piece(block.owner, row_bytes * size, read)
            yield Piece(block.owner, 0, partial(self._end, index))

    def _sketch_pieces(self, index: int, at: dict[str, Any]) -> Iterator[Message]:
        for shard, sketch in self._sketches.pop(index, {}).items():
            about = {"kind": "sketch", **at, "shard": shard, "counted": sketch.num_counted}
            size = max(1, self._piece_bytes // max(1, sketch.counters.shape[1]))
            for start in range(0, len(sketch.pages), size):
                some = slice(start, start + size)
                tensors: dict[str, NDArray[Any]] = {
                    "pages": sketch.pages[some],
                    "counters": sketch.counters[some],
                }
                yield Message(fields=about, tensors=tensors)

    def _places(self, index: int, start: int, size: int, at: dict[str, Any]) -> Message:
        image = self._images[index]
        ids, is_live = self._blocks[index].rows.image_places(image, start, size)
        return Message(
            fields={"kind": "places", **at, "start": start},
            tensors={"ids": ids, "live": is_live},
        )

    def _rows(self, index: int, start: int, size: int, at: dict[str, Any]) -> Message | None:
        image = self._images[index]
        ids, values, states = self._blocks[index].rows.read_image(image, start, size)
        if not len(ids):
            return None
        return Message(
            fields={"kind": "rows", **at, "start": start},
            tensors={"ids": ids, "values": values, "states": states},
        )

    def _end(self, index: int) -> None:
        image = self._images.pop(index, None)
        if image is not None:
            self._blocks[index].rows.end_image(image)


class DenseImage:
    """A dense table at the moment at which its owner has run ``begin_jobs``.

    Args:
        table: It; none of its changes is under way.
        piece_bytes: About how much one message has.
        copies: Whether its values are copied at once; else nobody may change them until they
            are read.
    """

    def __init__(self, table: DenseTable, piece_bytes: int, *, copies: bool) -> None:
        updates = table.pieced_updates()
        numbers = [_numbers_of(each) for each in updates.values()]
        tensors: dict[str, NDArray[Any]] = {
            "workers": table_of(
                ((worker, *each.source, each.number) for worker, each in updates.items()), 4
            ),
            "numbers": np.array(numbers, np.float64).reshape(-1, 4),
            "missed": table_of(table.missed.counts(), 3),
        }
        self.about = _about(table, tensors)
        """What is known of it beside values."""
        self.copies = copies
        self._table = table
        self._range = table.range
        self._is_untouched = table.range.is_untouched
        self._piece_bytes = piece_bytes
        self._values = self._range.values
        self._states = self._range.states

    def begin_jobs(self) -> list[Job]:
        """Return what copies the values, if they are to be."""

        def copy() -> None:
            self._values, self._states = self._values.copy(), self._states.copy()

        return [self._table.job(copy)] if self.copies else []

    def end_jobs(self) -> list[Job]:
        """Return nothing: no more is kept of what changes."""
        return []

    def pieces(self) -> Iterator[Piece | Message]:
        """Yield the values with their states."""
        name, num_columns = self._table.spec.name, 1 + len(self._states)
        size = max(1, self._piece_bytes // (4 * num_columns))
        for start in range(0, len(self._values), size):
            make = partial(self._part, slice(start, start + size))
            yield Piece(self._table.owner, 4 * num_columns * size, make)
        self._values, self._states = self._values[:0].copy(), self._states[:, :0].copy()
        fields = {"kind": "range", "table": name, "untouched": self._is_untouched}
        yield Message(fields=fields)

    def _part(self, where: slice) -> Message:
        return Message(
            fields={"kind": "values", "table": self._table.spec.name, "start": where.start},
            tensors={
                "values": self._values[where].copy(),
                "states": self._states[:, where].copy(),
            },
        )


def _about(table: Table, tensors: dict[str, NDArray[Any]]) -> Message:
    fields = {
        "kind": "table",
        "spec": table.spec.to_wire(),
        "table_version": table.version,
        "updates": table.num_updates,
        "pushes": table.num_pushes,
        "writes": table.writes,
        "last_write": table.last_write,
        "loaded": table.is_loaded,
        "assigned": table.is_assigned,
    }
    guards = np.array([guard.numbers() for guard in table.guards], np.float64)
    return Message(fields=fields, tensors={"guards": guards, **tensors})


def _numbers_of(update: Update) -> tuple[float, float, float, float]:
    """Return the other numbers of an update in pieces; NaN stands for None."""
    first = np.nan if update.first is None else float(update.first)
    scale, power = (np.nan, np.nan) if update.stride is None else update.stride
    return update.square, first, scale, power
