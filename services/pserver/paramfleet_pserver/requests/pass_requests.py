"""Requests of passes, judged before any effect: to read rows whole, and to write them back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.core.passes import Piece
from paramfleet_pserver.requests.changes import missed_in
from paramfleet_pserver.requests.checked import checked_answer_bytes
from paramfleet_pserver.requests.fields import MAX_PARTS, Fields
from paramfleet_pserver.requests.tensors import PartIds, tensor_of
from paramfleet_pserver.tables.columns import CameIds, PassPart, states_shape, values_shape
from paramfleet_pserver.tables.parts import DensePart, SparsePart
from paramfleet_pserver.tables.table import SparseTable, Table
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.encoding import Encoded
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.values.ids import Rank

__all__ = [
    "FIRST_PASS",
    "MAX_PIECES",
    "PassRead",
    "PrepareRequest",
    "ReadRequest",
    "member_of",
    "pieces_named",
    "prepare_request",
    "read_request",
]

FIRST_PASS = 1
"""Passes are numbered from here on."""

MAX_PIECES = 1 << 20
"""Of one worker's pass on one pserver: with pieces as long as a message may be, 256 TiB."""

_FLOAT_BYTES = 4

_TENSORS = ("ids", "offsets", "values", "states", "came", "came_offsets", "uses")
"""Of a part; a dense one has values and states alone. Those from ``came`` on are of ids that
got no row, or got it in the pass."""


class PassRead(NamedTuple):
    """What to read of one table, and where to put it."""

    table: Table
    rows: RowIds | None
    """None reads a dense table's range."""
    where: slice
    """Which values of the range."""
    values: NDArray[np.float32]
    """Room for [n, D] or [m]."""
    states: NDArray[np.float32]
    """Room for [n, W] or [S, m]."""
    waits: NDArray[np.int32] | None = None
    """Of a table with an entry: room for [n]."""
    free_rows: NDArray[np.int64] | None = None
    """Of a table that may have so many rows: room for [shards here]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadRequest:
    """What a worker reads at the beginning of a pass."""

    rank: Rank
    incarnation: int
    parts: tuple[PassRead, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareRequest:
    """A piece of what a worker writes back at the end of a pass."""

    piece: Piece
    parts: tuple[PassPart, ...]
    """Each of another table."""


def member_of(fields: Fields) -> tuple[Rank, int]:
    """Read who acts: a rank and its incarnation.

    Raises:
        MalformedMessageError: if a field is missing or of a wrong type.
    """
    return Rank(fields.integer("rank")), fields.integer("incarnation")


def read_request(message: Message, store: TableStore) -> ReadRequest:
    """Read a ``read_pass``, and make room for what it reads.

    Raises:
        MalformedMessageError: if a field or the bounds of ids are wrong, a tensor is missing,
            or a range isn't held here.
        UnknownTableError: if a table wasn't declared.
        RowShapeError: if a tensor's dtype or shape is wrong.
        AnswerTooLargeError: if the answer would be longer than a worker takes.
    """
    fields = Fields(message.fields, where="read_pass")
    rank, incarnation = member_of(fields)
    ids = PartIds(message)
    wanted: list[tuple[Table, RowIds | None, slice]] = []
    num_bytes = 0
    for index, about in enumerate(fields.parts("parts")):
        part = Fields(about, where=f"read_pass part {index}")
        table = store.find(part.text("table"))
        rows, where = _which(part, ids, index, table)
        num_bytes = _answer_bytes(num_bytes, table, where.stop - where.start)
        wanted.append((table, rows, where))
    parts = tuple(_read_of(*each) for each in wanted)
    return ReadRequest(rank=rank, incarnation=incarnation, parts=parts)


def prepare_request(message: Message, store: TableStore) -> PrepareRequest:
    """Read a ``prepare_pass``; its tensors stay views of the message.

    Raises:
        MalformedMessageError: if a field or the bounds of ids are wrong, a tensor is missing,
            a table is named twice, or a range isn't held here.
        UnknownTableError: if a table wasn't declared.
        RowShapeError: if a tensor's dtype or shape is wrong.
    """
    fields = Fields(message.fields, where="prepare_pass")
    ids = PartIds(message)
    named: set[str] = set()
    parts = []
    for index, about in enumerate(fields.parts("parts")):
        where = f"prepare_pass part {index}"
        part = Fields(about, where=where)
        table = store.find(part.text("table"))
        if table.spec.name in named:
            raise MalformedMessageError(where=where, rule="names a table a second time")
        named.add(table.spec.name)
        parts.append(_prepared(message, part, ids, index, table))
    of_parts = {f"{index}.{name}" for index in range(len(parts)) for name in _TENSORS}
    for name in message.tensors.keys() - of_parts:  # the whole message is kept
        raise MalformedMessageError(where=f"tensor {name!r}", rule="is of no part")
    return PrepareRequest(piece=_piece_of(fields), parts=tuple(parts))


def pieces_named(wire: Any) -> Mapping[Rank, int] | None:
    """Read which pieces a ``commit_pass`` names: ``[[rank, count], ...]``, or null.

    Raises:
        MalformedMessageError: if it is anything else, or names a worker twice.
    """
    where, rule = (
        "commit_pass field 'pieces'",
        "must be null, or a list of pairs [rank, count], one at least",
    )
    if wire is None:
        return None
    if type(wire) is not list or not 0 < len(wire) <= MAX_PARTS:
        raise MalformedMessageError(where=where, rule=rule)
    pieces: dict[Rank, int] = {}
    for each in wire:
        match each:
            case [rank, count] if type(rank) is int and type(count) is int:
                if rank < 0 or rank in pieces or not 1 <= count <= MAX_PIECES:
                    rule = f"must name ranks from 0, each once, with 1 to {MAX_PIECES} pieces"
                    raise MalformedMessageError(where=where, rule=rule)
                pieces[Rank(rank)] = count
            case _:
                raise MalformedMessageError(where=where, rule=rule)
    return pieces


def _read_of(table: Table, rows: RowIds | None, where: slice) -> PassRead:
    """Return what to read, with room for it."""
    num, entry = where.stop - where.start, table.spec.entry
    return PassRead(
        table,
        rows,
        where,
        np.empty(values_shape(table, num), np.float32),
        np.empty(states_shape(table, num), np.float32),
        waits=None if entry.admits_all else np.zeros(num, np.int32),
        free_rows=np.zeros(len(table.hosted), np.int64)
        if isinstance(table, SparseTable) and entry.max_rows
        else None,
    )


def _piece_of(fields: Fields) -> Piece:
    """Read which piece a ``prepare_pass`` is.

    Raises:
        MalformedMessageError: if a field is wrong, or the piece is none of those there are.
    """
    rank, incarnation = member_of(fields)
    piece, pieces = fields.integer("piece"), fields.optional_integer("pieces")
    most = MAX_PIECES if pieces is None else pieces
    if not piece < most <= MAX_PIECES:
        rule = f"must be below the number of pieces, and that at most {MAX_PIECES}"
        raise MalformedMessageError(where="prepare_pass field 'piece'", rule=rule)
    number = fields.integer("pass", least=FIRST_PASS)
    return Piece(rank, incarnation, number, piece, pieces)


def _which(part: Fields, ids: PartIds, index: int, table: Table) -> tuple[RowIds | None, slice]:
    """Return which rows or values a part is of, the rows' numbers as a slice, too.

    Raises:
        MalformedMessageError: if there are no such values here, or the ids are wrong.
        RowShapeError: if a tensor's dtype or shape is wrong.
    """
    if isinstance(table, SparseTable):
        rows = ids.read(index, table, packed=False)
        return rows, slice(0, len(rows.ids))
    start, stop = part.integer("start"), part.integer("stop")
    if not start <= stop <= table.num_rows:
        rule = f"must be in order and at most {table.num_rows}, the values held here"
        raise MalformedMessageError(where="part fields 'start' and 'stop'", rule=rule)
    return None, slice(start, stop)


def _prepared(
    message: Message, part: Fields, ids: PartIds, index: int, table: Table
) -> PassPart:
    rows, where = _which(part, ids, index, table)
    num = where.stop - where.start
    values, states = (
        tensor_of(message, f"{index}.{name}", table, dtype="float32", shape=shape)
        for name, shape in (
            ("values", values_shape(table, num)),
            ("states", states_shape(table, num)),
        )
    )
    numbers = Encoded(values)
    return PassPart(
        table=table,
        content=DensePart(numbers, at=where.start)
        if rows is None
        else SparsePart(rows.ids, rows.offsets, numbers),
        states=states,
        writes=part.integer("writes"),
        updates=part.integer("updates"),
        stepped=part.flag("stepped"),
        came=_came(message, part, ids, index, table),
        missed=missed_in(part, table.num_rows).counts() if rows is None else (),
    )


def _came(
    message: Message, part: Fields, ids: PartIds, index: int, table: Table
) -> CameIds | None:
    """Return which ids of a part came without a row; None where it says nothing of them.

    Raises:
        MalformedMessageError: if a tensor is missing, the ids are wrong, or the table gives
            every id a row.
        RowShapeError: if a tensor's dtype or shape is wrong.
    """
    if not part.has("refused"):
        return None
    if not isinstance(table, SparseTable) or table.spec.entry.admits_all:
        rule = f"is of a table with an entry, which {table.spec.name!r} has not"
        raise MalformedMessageError(where="part field 'refused'", rule=rule)
    rows = ids.read(index, table, packed=False, names=("came", "came_offsets"))
    shape = (len(rows.ids),)
    uses = tensor_of(message, f"{index}.uses", table, dtype="int32", shape=shape)
    return CameIds(rows.ids, rows.offsets, uses, part.integer("refused"))


def _answer_bytes(before: int, table: Table, num: int) -> int:
    """Return the length of an answer of so many bytes and one more part.

    Raises:
        AnswerTooLargeError: if no worker would take it.
    """
    waits = 0 if table.spec.entry.admits_all else num
    shapes = values_shape(table, num), states_shape(table, num), (waits,)
    num_bytes = before + _FLOAT_BYTES * sum(int(np.prod(shape)) for shape in shapes)
    return checked_answer_bytes(num_bytes, table, rows=num)
