"""Answers of all pservers, put together to one change of the model.

Shape legend: n = rows, m = removed rows, D = row width.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.deltas.records import Change, TableChange
from paramfleet_shared.errors import IntegrityError
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.spec import TableSpec

__all__ = [
    "Assembly",
    "DenseVectors",
    "TablesDifferError",
    "Taken",
    "check_same_tables",
    "read_rows",
]


class TablesDifferError(IntegrityError):
    """Pservers of one job have different tables."""

    code = "integrity.tables_differ"
    table: str
    sentence = "pservers of the job describe table {table!r} differently"


def check_same_tables(all_tables: Sequence[Sequence[TableSpec]]) -> tuple[TableSpec, ...]:
    """Return the tables that each pserver has described.

    Raises:
        TablesDifferError: if they differ.
    """
    first, *others = ({spec.name: spec for spec in tables} for tables in all_tables)
    for other in others:
        for name in first.keys() | other.keys():
            if first.get(name) != other.get(name):
                raise TablesDifferError(table=name)
    return tuple(first.values())


def read_rows(
    tensors: Mapping[str, NDArray[Any]], prefix: str, dim: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return ids int64 [n] and rows float32 [n, D] of an answer.

    Raises:
        MalformedMessageError: if they are something else.
    """
    ids, rows = tensors.get(f"{prefix}ids"), tensors.get(f"{prefix}rows")
    if (
        ids is None or rows is None or ids.dtype != np.int64 or rows.dtype != np.float32
        or ids.ndim != 1 or rows.shape != (len(ids), dim)
    ):  # fmt: skip
        rule = f"must be int64 [n] and float32 [n, {dim}]"
        raise MalformedMessageError(
            where=f"tensors '{prefix}ids' and '{prefix}rows'", rule=rule
        )
    return ids, rows


class Taken(NamedTuple):
    """What an answer has of dense tables."""

    marks: dict[str, int]
    """Of those that are whole now, by table."""
    places: dict[str, list[int]]
    """Of the others: the mark of what came, and the place of the next value."""


class DenseVectors:
    """The dense tables of a job as they were answered last, each in its whole length.

    Args:
        specs: The job's dense tables.
    """

    def __init__(self, specs: Sequence[TableSpec]) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._vectors = {
            spec.name: np.zeros(spec.size, np.float32) for spec in self._specs.values()
        }

    def put(self, table: str, start: int, values: NDArray[Any]) -> None:
        """Take a pserver's part of a table.

        Raises:
            MalformedMessageError: if there is no such part.
        """
        vector = self._vectors.get(table)
        stop = start + len(values) if values.ndim == 1 else -1
        if (
            vector is None
            or values.dtype != np.float32
            or not 0 <= start <= stop <= len(vector)
        ):
            rule = "must be a part of a dense table, float32"
            raise MalformedMessageError(where="field 'dense'", rule=rule)
        vector[start:stop] = values

    def parameters(self, tables: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Return copies of the parameters of some tables, by name.

        A table whose parameters have no names is one parameter of its own name.
        """
        found = dict[str, NDArray[np.float32]]()
        for table in tables:
            vector, position = self._vectors[table].copy(), 0
            for name, shape in self._specs[table].parameters or ((table, vector.shape),):
                size = int(np.prod(shape, dtype=np.int64))
                found[name] = vector[position : position + size].reshape(shape)
                position += size
        return found


class Assembly:
    """One change, as its answers come; those of one pserver come in order.

    Args:
        specs: The job's tables, by name.
        dense: Takes dense values.
    """

    def __init__(self, specs: Mapping[str, TableSpec], dense: DenseVectors) -> None:
        self._specs = specs
        self._dense = dense
        self._pieces = dict[str, list[TableChange]]()
        self._touched = set[str]()

    def take(self, answer: Message) -> "Taken":
        """Take an answer to ``feed_changes``; return what it has of dense tables.

        Raises:
            MalformedMessageError: if it isn't one.
        """
        where = "answer to 'feed_changes'"
        parts, dense = answer.fields.get("parts"), answer.fields.get("dense")
        if type(parts) is not list or type(dense) is not list:
            raise MalformedMessageError(where=where, rule="must have parts and dense")
        for index, part in enumerate(parts):
            spec = self._specs.get(str(part.get("table"))) if type(part) is dict else None
            if spec is None or spec.kind != "sparse":
                raise MalformedMessageError(where=where, rule="must name tables of rows")
            ids, rows = read_rows(answer.tensors, f"{index}.", spec.dim)
            removed = answer.tensors.get(f"{index}.removed")
            if removed is None or removed.dtype != np.int64 or removed.ndim != 1:
                raise MalformedMessageError(where=where, rule="removed must be int64 [m]")
            self._pieces.setdefault(spec.name, []).append(TableChange(ids, rows, removed))
        taken = Taken({}, {})
        for index, part in enumerate(dense):
            values = answer.tensors.get(f"dense.{index}")
            if type(part) is not dict or values is None:
                raise MalformedMessageError(where=where, rule="must have dense values")
            table, start, mark = part.get("table"), part.get("start"), part.get("mark")
            if type(table) is not str or type(start) is not int or type(mark) is not int:
                raise MalformedMessageError(where=where, rule="must say which dense values")
            left = part.get("left", 0)
            if type(left) is not int or left < 0:
                raise MalformedMessageError(where=where, rule="must say how many are left")
            self._dense.put(table, start, values)
            if left:
                taken.places[table] = [mark, start + len(values)]
            else:
                taken.marks[table] = mark
                self._touched.add(table)
        return taken

    def change(self, moment: float) -> Change:
        """Return all that was taken.

        Args:
            moment: Seconds since 1970: before the first of the questions.
        """
        tables = {table: _latest(pieces) for table, pieces in self._pieces.items()}
        return Change(
            moment=moment,
            tables=tables,
            dense=self._dense.parameters(sorted(self._touched)),
        )


def _latest(pieces: Sequence[TableChange]) -> TableChange:
    """Return several changes of a table as one: of an id that comes again the last holds."""
    if len(pieces) == 1:
        return pieces[0]
    ids = np.concatenate([np.concatenate([each.ids, each.removed]) for each in pieces])
    is_row = np.concatenate(
        [np.arange(len(each.ids) + len(each.removed)) < len(each.ids) for each in pieces]
    )
    rows = np.concatenate([each.rows for each in pieces])
    number = np.cumsum(is_row) - 1
    _, first = np.unique(ids[::-1], return_index=True)
    last = len(ids) - 1 - first
    kept = last[is_row[last]]
    return TableChange(ids[kept], rows[number[kept]], ids[last[~is_row[last]]])
