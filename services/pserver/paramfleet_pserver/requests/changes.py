"""The parts of a push or an exchange: which numbers are for which rows or values."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.requests.fields import Fields
from paramfleet_pserver.requests.tensors import PartIds, change_of, tensor_of
from paramfleet_pserver.tables.parts import DensePart, Piece, SetValues, SparsePart
from paramfleet_pserver.tables.table import DenseTable, SparseTable, Table
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.net.wire.identity import FIRST_SEQUENCE, ChangeIdentity
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.encoding import WIRE_DTYPES
from paramfleet_shared.tables.rows.evicting import latest_of
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec
from paramfleet_shared.values.ids import Rank
from paramfleet_shared.values.spans import MissedUpdates, Span

__all__ = ["Changes", "identity_of", "missed_in", "rule_of_step", "set_values_of", "spans_in"]

MAX_SPANS = 1 << 16
"""Of a table whose values have no names; of others as many as they have parameters."""

_ChangeIds = Literal["plain", "delta", "pulled", "same"]
_CHANGE_IDS: tuple[_ChangeIds, ...] = ("plain", "delta", "pulled", "same")


def identity_of(fields: Fields) -> ChangeIdentity:
    """Read the name of a change.

    Raises:
        MalformedMessageError: if a field is missing or of a wrong type.
    """
    return ChangeIdentity(
        worker=fields.integer("rank"),
        incarnation=fields.integer("incarnation"),
        sequence=fields.integer("sequence", least=FIRST_SEQUENCE),
    )


def rule_of_step(part: Fields, spec: TableSpec) -> OptimizerSpec | None:
    """Return a table's rule with the numbers that a part says; None if it says none.

    Raises:
        MalformedMessageError: if the rule has no such number.
        TableSpecError: if one is outside of its range.
    """
    if not part.has("numbers"):
        return None
    known, numbers = spec.optimizer, part.map("numbers")
    if not numbers.keys() <= known.constants.keys():
        rule = f"must be of {', '.join(known.constants)}"
        raise MalformedMessageError(where="part field 'numbers'", rule=rule)
    wire = {**known.to_wire(), **numbers}
    return replace(spec, optimizer=OptimizerSpec(**wire)).optimizer  # both check them


def spans_in(
    message: Message, name: str, table: DenseTable, within: Span
) -> tuple[Span, ...] | None:
    """Return spans of a dense table's range; None if the message has none of that name.

    Raises:
        MalformedMessageError: if they aren't in order, disjoint and inside ``within``, or are
            more than the table's parameters.
        RowShapeError: if the tensor has another dtype or shape.
    """
    if name not in message.tensors:
        return None
    bounds = tensor_of(message, name, table, dtype="int64", shape=(None, 2))
    most = len(table.spec.parameters) or MAX_SPANS
    if len(bounds) > most:
        rule = f"has {len(bounds)} spans, and may have {most}: table {table.spec.name!r}"
        raise MalformedMessageError(where=f"tensor {name!r}", rule=rule)
    starts, stops = bounds[:, 0], bounds[:, 1]
    inside = not len(bounds) or (within[0] <= starts[0] and stops[-1] <= within[1])
    if not inside or not (starts < stops).all() or not (stops[:-1] <= starts[1:]).all():
        rule = f"must be spans in order within {within[0]}..{within[1]}"
        raise MalformedMessageError(where=f"tensor {name!r}", rule=rule)
    return tuple((start, stop) for start, stop in bounds.tolist())


def set_values_of(message: Message, name: str, table: DenseTable) -> SetValues | None:
    """Return values that a program has set; None if the message has none of that name.

    Raises:
        MalformedMessageError: if their places don't rise within the range.
        RowShapeError: if a tensor has another dtype or shape.
    """
    if f"{name}_at" not in message.tensors:
        return None
    places = tensor_of(message, f"{name}_at", table, dtype="int64", shape=(None,))
    values = tensor_of(message, f"{name}_to", table, dtype="float32", shape=places.shape)
    inside = not len(places) or (places[0] >= 0 and places[-1] < table.num_rows)
    if not inside or not (places[1:] > places[:-1]).all():
        rule = f"must rise within the {table.num_rows} values held here"
        raise MalformedMessageError(where=f"tensor '{name}_at'", rule=rule)
    return SetValues(places, values)


def missed_in(about: Fields, size: int) -> MissedUpdates:
    """Return how many updates the values of a range have missed.

    Raises:
        MalformedMessageError: if these aren't counts of its values.
    """
    try:
        return MissedUpdates.checked(about.rows("missed", 3), size)
    except ValueError as error:
        raise MalformedMessageError(where="field 'missed'", rule=str(error)) from error


class Changes:
    """The parts of a push or an exchange, each read as it is asked for.

    Args:
        message: The request.
        store: The tables.
        fields: The request's.
        tensor: What the numbers are called: ``grads`` or ``deltas``.
        pieces: Whether a part may be a piece of a dense table's range.
    """

    def __init__(
        self,
        message: Message,
        store: TableStore,
        fields: Fields,
        *,
        tensor: str,
        pieces: bool,
    ) -> None:
        self._message = message
        self._ids = PartIds(message)
        self._store = store
        self._fields = fields
        self._tensor = tensor
        self._pieces = pieces
        self._read: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}  # ids, bounds
        self.identity = identity_of(fields)

    def __iter__(self) -> Iterator[tuple[Table, SparsePart | DensePart, Fields]]:
        named: set[str] = set()
        for index, about in enumerate(self._fields.parts("parts")):
            part = Fields(about, where=f"part {index}")
            table = self._store.find(part.text("table"))
            name = table.spec.name
            if name in named:
                raise MalformedMessageError(
                    where=f"part {index}", rule="names a table a second time"
                )
            named.add(name)
            yield table, self._content(index, part, table), part

    def _content(self, index: int, part: Fields, table: Table) -> SparsePart | DensePart:
        wire = part.choice("wire", WIRE_DTYPES, "float32")
        name = f"{index}.{self._tensor}"
        if isinstance(table, SparseTable):
            coded = part.choice("ids", _CHANGE_IDS, "plain")
            if coded == "pulled":
                ids, offsets = table.pulled.find(
                    Rank(self.identity.worker), part.integer("pulled")
                )
            elif coded == "same":
                ids, offsets = self._earlier(index, part.integer("as"))
            else:
                packed = coded == "delta"
                ids, offsets = self._ids.read(index, table, packed=packed)
            self._read[index] = ids, offsets
            rows = change_of(
                self._message, name, table, wire=wire, shape=(len(ids), table.spec.dim)
            )
            now = part.integer("now", most=latest_of(table.spec)) if part.has("now") else 0
            marks = self._marks(index, table, len(ids))
            unique = part.flag("unique")
            return SparsePart(ids, offsets, rows, wire, unique=unique, now=now, marks=marks)
        assert isinstance(table, DenseTable), "a table is sparse or dense"
        piece, at, stop = self._piece(part, table)
        values = change_of(self._message, name, table, wire=wire, shape=(stop - at,))
        part_of_range = DensePart(values, wire, at=at, piece=piece)
        if self._tensor != "grads":
            return part_of_range
        return part_of_range._replace(
            spans=spans_in(self._message, f"{index}.spans", table, (at, stop)),
            set_before=set_values_of(self._message, f"{index}.set", table),
            is_update=not part.flag("only_sets"),
        )

    def _marks(self, index: int, table: SparseTable, num: int) -> NDArray[np.uint8] | None:
        """Return what an exchange says of each row of a table that counts, uint8 [n].

        Raises:
            MalformedMessageError: if it isn't of such a table.
            RowShapeError: if there aren't as many.
        """
        name = f"{index}.marks"
        if name not in self._message.tensors:
            return None
        if self._tensor != "deltas" or not table.spec.creates_at_push:
            rule = "is of an exchange, of a table that counts its rows or has an entry"
            raise MalformedMessageError(where=f"tensor {name!r}", rule=rule)
        return tensor_of(self._message, name, table, dtype="uint8", shape=(num,))

    def _piece(self, part: Fields, table: DenseTable) -> tuple[Piece | None, int, int]:
        """Return what a part is a piece of, and which values it is for; None for all.

        Raises:
            MalformedMessageError: if there are no such values, or it can't be a piece here.
        """
        start = part.optional_integer("start")
        if start is None:
            return None, 0, table.num_rows
        stop = part.integer("stop")
        if not self._pieces or not start <= stop <= table.num_rows:
            rule = f"must be in order and at most {table.num_rows}, the values held here"
            if not self._pieces:
                rule = "are for modes whose workers don't wait for one another"
            raise MalformedMessageError(where="part fields 'start' and 'stop'", rule=rule)
        square = part.number("square")
        if square < 0:
            raise MalformedMessageError(where="part field 'square'", rule="must be >= 0")
        first = part.integer("update", least=FIRST_SEQUENCE)
        return Piece(first, square), start, stop

    def _earlier(self, index: int, other: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids and bounds of an earlier part.

        Raises:
            MalformedMessageError: if there is no such sparse part.
        """
        if other not in self._read:
            where = f"part {index} field 'as'"
            raise MalformedMessageError(where=where, rule="must name an earlier sparse part")
        return self._read[other]
