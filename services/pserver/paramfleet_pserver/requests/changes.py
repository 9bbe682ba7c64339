"""The parts of a push or an exchange: which numbers are for which rows or values."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.requests.fields import Fields
from paramfleet_pserver.requests.tensors import PartIds, change_of, tensor_of
from paramfleet_pserver.tables.parts import DensePart, Piece, SparsePart
from paramfleet_pserver.tables.table import DenseTable, SparseTable, Table
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.net.wire.identity import FIRST_SEQUENCE, ChangeIdentity
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.encoding import WIRE_DTYPES
from paramfleet_shared.tables.rows.evicting import latest_of
from paramfleet_shared.values.ids import Rank

__all__ = ["Changes", "identity_of"]

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
        return DensePart(values, wire, at=at, piece=piece)

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
