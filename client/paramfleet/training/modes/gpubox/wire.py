"""Rows and dense values with all their columns, from pservers and back to them.

Sans-io: messages, and what answers say. Large tables travel in pieces.

Shape legend: n = ids, D = row width, W = states of a row, m = dense values, S = states of one.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet.tables.device.admitting import CameIds
from paramfleet.tables.device.table import DeviceRows, layout_of
from paramfleet.transport.requests import dense_slice
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.partition import Partitioned, partition
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.values.spans import MissedUpdates

__all__ = [
    "PIECE_BYTES",
    "DenseNumbers",
    "DenseRead",
    "Piece",
    "RowsRead",
    "Written",
    "free_rows_of",
    "look_messages",
    "pieces_of_dense",
    "pieces_of_rows",
]

PIECE_BYTES = 8 << 20
"""Of one message, about: others are served between two of them."""


class Written(NamedTuple):
    """How far a table had come when it was read, on one pserver."""

    writes: int
    """Counts what changed it; a pass that began before another change is refused."""
    updates: int
    """Steps of its optimizer."""


class RowsRead:
    """A request for rows, one message a pserver, and what its answers say.

    Args:
        spec: The table.
        ids: int64 [n], each once.
        placement: Who hosts what.
    """

    def __init__(self, spec: TableSpec, ids: NDArray[np.int64], placement: Placement) -> None:
        self._spec = spec
        self._ids = ids
        self._placement = placement
        self._sorted: Partitioned = partition(ids, placement.num_shards)

    def messages(self) -> list[Message]:
        """Return one message a pserver."""
        rows, messages = RowIds(self._sorted.ids, self._sorted.offsets), []
        for server in range(self._placement.num_servers):
            where, bounds = rows.of(self._placement.shards_of(server))
            tensors = {"0.ids": rows.ids[where], "0.offsets": bounds}
            fields = {"parts": [{"table": self._spec.name}]}
            messages.append(Message(fields=fields, tensors=tensors))
        return messages

    def join(self, answers: Sequence[Message]) -> DeviceRows:
        """Return the rows, in the order of the ids."""
        layout = layout_of(self._spec)
        found = np.empty((len(self._ids), layout.pitch), np.float32)
        waits = None if self._spec.entry.admits_all else np.empty(len(self._ids), np.int32)
        start = 0
        for answer in answers:
            values, states = answer.tensors["0.values"], answer.tensors["0.states"]
            stop = start + len(values)
            found[start:stop, : self._spec.dim] = values
            found[start:stop, self._spec.dim :] = states
            if waits is not None:
                waits[start:stop] = answer.tensors["0.waits"]
            start = stop
        order = self._sorted.inverse
        return DeviceRows(self._ids, found[order], None if waits is None else waits[order])


class DenseRead:
    """A request for a piece of each pserver's range of a dense table.

    Args:
        spec: The table.
        piece: Which values of each range, as far as it has them.
        placement: Who hosts what.
    """

    def __init__(self, spec: TableSpec, piece: slice, placement: Placement) -> None:
        self._spec = spec
        self._piece = piece
        self._ranges = [
            dense_slice(spec.size, placement, server) for server in range(placement.num_servers)
        ]

    def messages(self) -> list[Message]:
        """Return one message a pserver."""
        messages = []
        for held in self._ranges:
            where = _within(self._piece, held)
            part = {"table": self._spec.name, "start": where.start, "stop": where.stop}
            messages.append(Message(fields={"parts": [part]}, tensors={}))
        return messages

    def missed(self, answers: Sequence[Message]) -> MissedUpdates:
        """Return how many updates values of the table have missed."""
        said = (answer.fields["parts"][0].get("missed", []) for answer in answers)
        return MissedUpdates.joined(
            (held.start, MissedUpdates.checked(counts, held.stop - held.start))
            for held, counts in zip(self._ranges, said, strict=True)
        )

    def put(self, answers: Sequence[Message], into: "DenseNumbers") -> None:
        """Put values and states to their places."""
        for held, answer in zip(self._ranges, answers, strict=True):
            where = _within(self._piece, held)
            place = slice(held.start + where.start, held.start + where.stop)
            into.values[place] = answer.tensors["0.values"]
            into.states[:, place] = answer.tensors["0.states"]


@dataclass(frozen=True, slots=True)
class DenseNumbers:
    """A dense table with its states."""

    values: NDArray[np.float32]
    """[P]"""
    states: NDArray[np.float32]
    """[S, P]"""


class Piece(NamedTuple):
    """What one message prepares on one pserver, but for what all of them have."""

    part: dict[str, Any]
    tensors: dict[str, NDArray[Any]]


def look_messages(specs: Iterable[TableSpec], placement: Placement) -> list[Message]:
    """Return one message a pserver that reads how far tables have come, and nothing of them."""
    messages = []
    for server in range(placement.num_servers):
        parts: list[dict[str, Any]] = []
        tensors: dict[str, NDArray[Any]] = {}
        for index, spec in enumerate(specs):
            parts.append({"table": spec.name})
            if spec.kind == "dense":
                parts[-1] |= {"start": 0, "stop": 0}
                continue
            tensors[f"{index}.ids"] = np.empty(0, np.int64)
            num_bounds = len(placement.shards_of(server)) + 1
            tensors[f"{index}.offsets"] = np.zeros(num_bounds, np.int64)
        messages.append(Message(fields={"parts": parts}, tensors=tensors))
    return messages


def free_rows_of(
    specs: Iterable[TableSpec], answers: Sequence[Message], placement: Placement
) -> dict[str, NDArray[np.int64]]:
    """Return how many rows each shard may still get, of tables where that is limited.

    Args:
        specs: As of ``look_messages``.
        answers: To its messages.
        placement: Who hosts what.

    Returns:
        int64 [shards] by table.
    """
    found = {}
    for index, spec in enumerate(specs):
        if spec.entry.max_rows:
            own = [answer.tensors[f"{index}.room"] for answer in answers]
            found[spec.name] = free_rows = np.zeros(placement.num_shards, np.int64)
            for server, each in enumerate(own):
                shards = placement.shards_of(server)
                free_rows[shards.start : shards.stop] = each
    return found


def pieces_of_rows(
    spec: TableSpec, written: DeviceRows, placement: Placement, came: CameIds | None = None
) -> Iterator[list[Piece]]:
    """Yield, of each pserver in turn, the pieces that prepare rows: at least one.

    Args:
        spec: The table.
        written: The rows, each id once.
        placement: Who hosts what.
        came: Ids that came and got no row, or none at first.
    """
    told = [] if came is None else _came_by_server(came, placement)
    ids, inverse, bounds = partition(written.ids, placement.num_shards)
    order = np.empty(len(ids), np.int64)
    order[inverse] = np.arange(len(ids))
    num_rows = max(1, PIECE_BYTES // (layout_of(spec).row_bytes + written.ids.itemsize))
    for server in range(placement.num_servers):
        own, within = RowIds(ids, bounds).of(placement.shards_of(server))
        pieces = []
        for start in range(own.start, max(own.stop, own.start + 1), num_rows):
            stop = min(start + num_rows, own.stop)
            rows = written.rows[order[start:stop]]
            first = start - own.start
            tensors = {
                "0.ids": ids[start:stop],
                "0.offsets": np.clip(within, first, stop - own.start) - first,
                "0.values": np.ascontiguousarray(rows[:, : spec.dim]),
                "0.states": np.ascontiguousarray(rows[:, spec.dim :]),
            }
            pieces.append(Piece({"table": spec.name}, tensors))
        for number, each in enumerate(told[server] if told else ()):
            if number == len(pieces):  # of ids that came there are more pieces than of rows
                pieces.append(_no_rows(spec, len(within)))
            pieces[number] = Piece(
                pieces[number].part | each.part, pieces[number].tensors | each.tensors
            )
        yield pieces


def _no_rows(spec: TableSpec, num_bounds: int) -> Piece:
    """Return a piece that prepares no row."""
    layout, none = layout_of(spec), np.empty(0, np.int64)
    tensors: dict[str, NDArray[Any]] = {
        "0.ids": none,
        "0.offsets": np.zeros(num_bounds, np.int64),
        "0.values": np.empty((0, spec.dim), np.float32),
        "0.states": np.empty((0, layout.pitch - spec.dim), np.float32),
    }
    return Piece({"table": spec.name}, tensors)


def pieces_of_dense(
    spec: TableSpec,
    numbers: DenseNumbers,
    placement: Placement,
    *,
    is_stepped: bool,
    missed: MissedUpdates,
) -> Iterator[list[Piece]]:
    """Yield, of each pserver in turn, the pieces that prepare its range: at least one.

    Args:
        spec: The table.
        numbers: Values and states.
        placement: Who hosts what.
        is_stepped: Whether the optimizer has stepped them.
        missed: How many updates values have missed.
    """
    num_values = max(1, PIECE_BYTES // (4 * (1 + len(numbers.states))))
    for server in range(placement.num_servers):
        held, pieces = dense_slice(spec.size, placement, server), []
        own = missed.part((held.start, held.stop))
        for start in range(0, max(1, held.stop - held.start), num_values):
            where = _within(slice(start, start + num_values), held)
            place = slice(held.start + where.start, held.start + where.stop)
            part = {
                "table": spec.name,
                "start": where.start,
                "stop": where.stop,
                "stepped": is_stepped,
            }
            if own:
                part["missed"] = [*map(list, own.counts())]
            tensors = {
                "0.values": numbers.values[place].copy(),
                "0.states": numbers.states[:, place].copy(),
            }
            pieces.append(Piece(part, tensors))
        yield pieces


def _came_by_server(came: CameIds, placement: Placement) -> list[list[Piece]]:
    """Return, of each pserver, what pieces say of ids that came: as many as they need."""
    ids, inverse, bounds = partition(came.ids, placement.num_shards)
    uses = np.empty(len(ids), np.int32)
    uses[inverse] = came.uses
    num_ids = PIECE_BYTES // (ids.itemsize + uses.itemsize)
    of_servers = []
    for server in range(placement.num_servers):
        own, within = RowIds(ids, bounds).of(placement.shards_of(server))
        rest = came.refused - int(uses.sum()) if server == 0 else 0  # of ids that nobody counts
        stop, pieces = own.start, list[Piece]()
        while stop < own.stop or rest:
            start, stop = stop, min(stop + num_ids, own.stop)
            first = start - own.start
            tensors: dict[str, NDArray[Any]] = {
                "0.came": ids[start:stop],
                "0.came_offsets": np.clip(within, first, stop - own.start) - first,
                "0.uses": uses[start:stop],
            }
            pieces.append(Piece({"refused": int(uses[start:stop].sum()) + rest}, tensors))
            rest = 0
        of_servers.append(pieces)
    return of_servers


def _within(piece: slice, held: slice) -> slice:
    """Return which values of a pserver's range a piece is, counted from its first."""
    length = held.stop - held.start
    return slice(min(piece.start, length), min(piece.stop, length))
