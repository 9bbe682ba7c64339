"""Requests as checked facts: what comes off the wire is judged here, before any effect.

Every function takes a message apart and returns plain records, or raises the error
that says what is wrong with it. Tensors stay views of the message.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.core.identities import FIRST_SEQUENCE
from paramfleet_pserver.tablestore import (
    DensePart,
    DenseTable,
    SparsePart,
    SparseTable,
    Table,
    TableStore,
)
from paramfleet_shared.ids import Rank, Step
from paramfleet_shared.tables.rowstore import RowShapeError
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.wire.identity import PushIdentity
from paramfleet_shared.wire.message import MalformedMessageError, Message

__all__ = [
    "AssignRequest",
    "DeclareRequest",
    "ExchangePart",
    "ExchangeRequest",
    "Fields",
    "Mode",
    "PullPart",
    "PullRequest",
    "PushPart",
    "PushRequest",
    "assign_request",
    "declare_request",
    "exchange_request",
    "pull_request",
    "push_request",
    "tensor_of",
]

Mode = Literal["sync", "async", "geo"]

MODES: tuple[Mode, ...] = ("sync", "async", "geo")


class Fields:
    """Typed reading of a message's fields.

    Args:
        values: The fields.
        where: What they belong to, for errors.
    """

    def __init__(self, values: Mapping[str, Any], *, where: str) -> None:
        self._values = values
        self._where = where

    def integer(self, name: str, *, least: int = 0) -> int:
        """Return a whole number of at least ``least``."""
        value = self._values.get(name)
        if type(value) is not int or value < least:
            raise self._wrong(name, f"must be a whole number >= {least}")
        return value

    def optional_integer(self, name: str) -> int | None:
        """Return a whole number >= 0, or None if it is absent or None."""
        return None if self._values.get(name) is None else self.integer(name)

    def number(self, name: str) -> float:
        """Return a finite number."""
        value = self._values.get(name)
        if type(value) not in {int, float} or not math.isfinite(value):  # type: ignore[arg-type]  # narrowed
            raise self._wrong(name, "must be a finite number")
        return float(value)  # type: ignore[arg-type]  # narrowed by the test above

    def flag(self, name: str) -> bool:
        """Return a truth value; absent is False."""
        value = self._values.get(name, False)
        if type(value) is not bool:
            raise self._wrong(name, "must be true or false")
        return value

    def text(self, name: str) -> str:
        """Return a string."""
        value = self._values.get(name)
        if type(value) is not str:
            raise self._wrong(name, "must be a string")
        return value

    def parts(self, name: str) -> list[Mapping[str, Any]]:
        """Return a list of maps."""
        value = self._values.get(name)
        if type(value) is not list or not all(isinstance(part, dict) for part in value):
            raise self._wrong(name, "must be a list of maps")
        return value

    def _wrong(self, name: str, rule: str) -> MalformedMessageError:
        return MalformedMessageError(where=f"{self._where} field {name!r}", rule=rule)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclareRequest:
    """What a worker wants the servers to hold."""

    specs: tuple[TableSpec, ...]
    mode: Mode
    worker_num: int
    max_staleness: int | None
    rank: Rank
    incarnation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PullPart:
    """What to read of one table."""

    table: Table
    rows: SparsePart | None
    """Ids and bounds, and room for the rows; None reads a dense table's range."""
    create: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class PullRequest:
    """What a worker reads."""

    rank: Rank
    min_version: int
    parts: tuple[PullPart, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PushPart:
    """Gradients of one table."""

    identity: PushIdentity
    table: Table
    content: SparsePart | DensePart
    lr: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PushRequest:
    """What a worker pushes for a step."""

    rank: Rank
    incarnation: int
    step: Step
    weight: float
    parts: tuple[PushPart, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExchangePart:
    """Differences of one table, and what the worker wants to hear in return."""

    identity: PushIdentity
    table: Table
    content: SparsePart | DensePart
    ack: int
    """The last reply the worker has applied; 0 for none."""
    max_rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ExchangeRequest:
    """What a GEO worker tells and asks."""

    rank: Rank
    incarnation: int
    step: Step
    parts: tuple[ExchangePart, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class AssignRequest:
    """First values of this server's range of a dense table."""

    rank: Rank
    incarnation: int
    table: DenseTable
    only_if_new: bool
    values: NDArray[np.float32]


def declare_request(message: Message) -> DeclareRequest:
    """Read a ``declare``.

    Raises:
        MalformedMessageError: if a field is missing or of a wrong type.
        TableSpecError: if a table is described wrongly.
    """
    fields = Fields(message.fields, where="declare")
    mode = fields.text("mode")
    known = next((each for each in MODES if each == mode), None)
    if known is None:
        raise MalformedMessageError(where="declare field 'mode'", rule=f"must be in {MODES}")
    return DeclareRequest(
        specs=tuple(TableSpec.from_wire(wire) for wire in fields.parts("tables")),
        mode=known,
        worker_num=fields.integer("worker_num", least=1),
        max_staleness=fields.optional_integer("max_staleness"),
        rank=Rank(fields.integer("rank")),
        incarnation=fields.integer("incarnation"),
    )


def pull_request(message: Message, store: TableStore) -> PullRequest:
    """Read a ``pull``, and make room for its rows.

    Raises:
        MalformedMessageError: if a field, a tensor's name or the bounds of ids are wrong.
        UnknownTableError: if a table wasn't declared.
        RowShapeError: if a tensor's dtype or shape is wrong.
    """
    fields = Fields(message.fields, where="pull")
    parts = []
    for index, wire in enumerate(fields.parts("parts")):
        part = Fields(wire, where=f"pull part {index}")
        table = store.find(part.text("table"))
        rows = None
        if isinstance(table, SparseTable):
            ids, offsets = _ids_of(message, index, table)
            room = np.empty((len(ids), table.spec.dim), np.float32)
            rows = SparsePart(ids, offsets, room)
        parts.append(PullPart(table=table, rows=rows, create=part.flag("create")))
    return PullRequest(
        rank=Rank(fields.integer("rank")),
        min_version=fields.integer("min_version"),
        parts=tuple(parts),
    )


def push_request(message: Message, store: TableStore) -> PushRequest:
    """Read a ``push``.

    Raises:
        MalformedMessageError: if a field or the bounds of ids are wrong, a tensor is
            missing, or a table is named twice.
        UnknownTableError: if a table wasn't declared.
        RowShapeError: if a tensor's dtype or shape is wrong.
    """
    fields = Fields(message.fields, where="push")
    changes = _Changes(message, store, fields, tensor="grads")
    return PushRequest(
        rank=changes.rank,
        incarnation=changes.incarnation,
        step=Step(fields.integer("step")),
        weight=fields.number("weight"),
        parts=tuple(
            PushPart(identity=identity, table=table, content=content, lr=part.number("lr"))
            for identity, table, content, part in changes
        ),
    )


def exchange_request(message: Message, store: TableStore) -> ExchangeRequest:
    """Read an ``exchange``. Raises as ``push_request`` does."""
    fields = Fields(message.fields, where="exchange")
    changes = _Changes(message, store, fields, tensor="deltas")
    return ExchangeRequest(
        rank=changes.rank,
        incarnation=changes.incarnation,
        step=Step(fields.integer("step")),
        parts=tuple(
            ExchangePart(
                identity=identity,
                table=table,
                content=content,
                ack=part.integer("ack"),
                max_rows=part.integer("max_rows", least=1),
            )
            for identity, table, content, part in changes
        ),
    )


def assign_request(message: Message, store: TableStore) -> AssignRequest:
    """Read an ``assign``.

    Raises:
        MalformedMessageError: if a field is wrong, the values are missing, or the
            table is sparse.
        UnknownTableError: if the table wasn't declared.
        RowShapeError: if the values' dtype or number is wrong.
    """
    fields = Fields(message.fields, where="assign")
    table = store.find(fields.text("table"))
    if not isinstance(table, DenseTable):
        raise MalformedMessageError(
            where="assign field 'table'", rule="must name a dense table"
        )
    shape = (table.num_rows,)
    return AssignRequest(
        rank=Rank(fields.integer("rank")),
        incarnation=fields.integer("incarnation"),
        table=table,
        only_if_new=fields.flag("only_if_new"),
        values=tensor_of(message, "rows", table, dtype="float32", shape=shape),
    )


class _Changes:
    """The parts of a push or an exchange, each read as it is asked for."""

    def __init__(
        self, message: Message, store: TableStore, fields: Fields, *, tensor: str
    ) -> None:
        self._message = message
        self._store = store
        self._fields = fields
        self._tensor = tensor
        self.rank = Rank(fields.integer("rank"))
        self.incarnation = fields.integer("incarnation")

    def __iter__(
        self,
    ) -> Iterator[tuple[PushIdentity, Table, SparsePart | DensePart, Fields]]:
        named: set[str] = set()
        for index, wire in enumerate(self._fields.parts("parts")):
            part = Fields(wire, where=f"part {index}")
            table = self._store.find(part.text("table"))
            name = table.spec.name
            if name in named:
                raise MalformedMessageError(
                    where=f"part {index}", rule="names a table a second time"
                )
            named.add(name)
            identity = PushIdentity(
                worker=self.rank,
                incarnation=self.incarnation,
                table=name,
                sequence=part.integer("sequence", least=FIRST_SEQUENCE),
            )
            content = _content_of(self._message, f"{index}.{self._tensor}", index, table)
            yield identity, table, content, part


def tensor_of(
    message: Message, name: str, table: Table, *, dtype: str, shape: tuple[int | None, ...]
) -> NDArray[Any]:
    """Return a tensor of a known dtype and shape (None: any length).

    Raises:
        MalformedMessageError: if there is none of that name.
        RowShapeError: if it has another dtype or shape.
    """
    array = message.tensors.get(name)
    if array is None:
        raise MalformedMessageError(where=f"tensor {name!r}", rule="is missing")
    fits = len(shape) == array.ndim and all(
        want is None or want == have for want, have in zip(shape, array.shape, strict=True)
    )
    if array.dtype != dtype or not fits:
        wanted = ", ".join("any" if length is None else str(length) for length in shape)
        raise RowShapeError(
            table=table.spec.name,
            expected=f"{name} {dtype} [{wanted}]",
            got=f"{array.dtype} [{', '.join(map(str, array.shape))}]",
        )
    return array


def _content_of(
    message: Message, tensor: str, index: int, table: Table
) -> SparsePart | DensePart:
    if isinstance(table, SparseTable):
        ids, offsets = _ids_of(message, index, table)
        shape = (len(ids), table.spec.dim)
        rows = tensor_of(message, tensor, table, dtype="float32", shape=shape)
        return SparsePart(ids, offsets, rows)
    values = tensor_of(message, tensor, table, dtype="float32", shape=(table.num_rows,))
    return DensePart(values)


def _ids_of(
    message: Message, index: int, table: SparseTable
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    ids = tensor_of(message, f"{index}.ids", table, dtype="int64", shape=(None,))
    bounds = (table.blocks[-1].shards.stop + 1,)
    offsets = tensor_of(message, f"{index}.offsets", table, dtype="int64", shape=bounds)
    if offsets[0] != 0 or offsets[-1] != len(ids) or np.any(offsets[1:] < offsets[:-1]):
        raise MalformedMessageError(
            where=f"tensor '{index}.offsets'",
            rule=f"must rise from 0 to the number of ids ({len(ids)})",
        )
    return ids, offsets
