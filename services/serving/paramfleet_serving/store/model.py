"""A model as of a version (stream, number): its tables and dense parameters.

One thread owns it: lookups and parts of changes take turns there. A change is applied part by
part, and takes effect with its end, in all tables at once; until then lookups are those of the
version before. A ``View`` stays at its version even if changes take effect meanwhile.

Shape legend: n = ids of a change, D = width of a row, q = ids of a call.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from paramfleet_serving.store.base import BaseRows
from paramfleet_serving.store.table import ServedTable
from paramfleet_shared.deltas.records import (
    Change,
    NumberedChange,
    OpenedBase,
    StreamTable,
    TableChange,
)
from paramfleet_shared.errors.serving import (
    LookupRequestError,
    OutOfOrderError,
    ServingTableError,
)

__all__ = ["Model", "Version", "View"]

PART_ROWS = 4096
"""Rows of a change that are applied between two lookups: about a millisecond's work."""


class Version(NamedTuple):
    """What a model is as of."""

    stream: str
    number: int


@final
class Model:
    """The state behind some change of a stream.

    Args:
        stream: Which stream.
        number: Of the newest change that is in it.
        moment: What was applied until then, in seconds since 1970, is in it.
        tables: By name.
        dense: Dense parameters by name.
    """

    def __init__(
        self,
        stream: str,
        number: int,
        moment: float,
        tables: Mapping[str, ServedTable],
        dense: Mapping[str, NDArray[np.float32]],
    ) -> None:
        self.stream = stream
        self.number = number
        self.base_number = number
        """Of the base below it."""
        self.moment = moment
        self.tables = dict(tables)
        self.dense: Mapping[str, NDArray[np.float32]] = dict(dense)
        self.dense_number = number
        """Of the newest change of dense parameters, as far as it is known."""
        self.is_half = False
        """Whether a change was applied in part: then it is good for lookups alone."""
        self._views: dict[int, int] = {}
        """How many views there are, by number."""

    @classmethod
    def of_base(cls, base: OpenedBase) -> "Model":
        """Return the model of a base; takes a while for a large one."""
        tables = {
            name: ServedTable(table, BaseRows(ids, rows))
            for name, (table, ids, rows) in base.tables.items()
        }
        return cls(base.stream, base.number, base.moment, tables, base.dense)

    @property
    def version(self) -> Version:
        """Return what it is as of."""
        return Version(self.stream, self.number)

    @property
    def facts(self) -> dict[str, StreamTable]:
        """Return what its tables are, by name."""
        return {name: table.facts for name, table in self.tables.items()}

    @property
    def overlay_rows(self) -> int:
        """Return how many rows differ from the base."""
        return sum(table.overlay.num_rows for table in self.tables.values())

    @property
    def overlay_bytes(self) -> int:
        """Return the memory that those take."""
        return sum(table.overlay.num_bytes for table in self.tables.values())

    @property
    def is_settled(self) -> bool:
        """Return whether no view is at a version before this: the next change may begin."""
        return all(number >= self.number for number in self._views)

    def check_next(self, stream: str, numbered: NumberedChange) -> None:
        """Pass if a change is the next one, and fits the tables.

        Raises:
            OutOfOrderError: if it doesn't.
        """
        rule = ""
        if (stream, numbered.number) != (self.stream, self.number + 1):
            rule = f"stands where change {self.number + 1} of stream {self.stream} should be"
        for name, change in numbered.change.tables.items():
            rule = rule or self._why_unfit(name, change)
        if rule:
            raise OutOfOrderError(stream=stream, number=numbered.number, rule=rule)

    def applying(self, numbered: NumberedChange) -> Iterator[None]:
        """Apply a change that was checked, a part each time the iterator is advanced.

        It takes effect when the iterator is at its end. One that isn't run to its end leaves
        the version as it was, and the model ``is_half``.

        Raises:
            CapacityError: if there is no room for it.
        """
        assert self.is_settled, "values that are read would be overwritten"
        assert not self.is_half, "good for lookups alone"
        number, change = numbered.number, numbered.change
        self.is_half = True
        for name, part in change.tables.items():
            table = self.tables[name]
            for start in range(0, len(part.ids), PART_ROWS):
                end = start + PART_ROWS
                table.put(part.ids[start:end], part.rows[start:end], number)
                yield
            for start in range(0, len(part.removed), PART_ROWS):
                table.remove(part.removed[start : start + PART_ROWS], number)
                yield
        self._commit(number, change)

    def note_moment(self, moment: float) -> None:
        """Take note that nothing else had changed until then."""
        self.moment = max(self.moment, moment)

    @contextmanager
    def view(self) -> Iterator["View"]:
        """Read this version, as long as the block lasts."""
        number = self.number
        self._views[number] = self._views.get(number, 0) + 1
        try:
            yield View(self, number, self.moment, self.dense, self.dense_number)
        finally:
            self._views[number] -= 1
            if not self._views[number]:
                del self._views[number]

    def _commit(self, number: int, change: Change) -> None:
        self.number, self.is_half = number, False
        self.note_moment(change.moment)
        if change.dense:
            self.dense = {**self.dense, **change.dense}
            self.dense_number = number

    def _why_unfit(self, name: str, change: TableChange) -> str:
        table = self.tables.get(name)
        if table is None:
            return f"it changes table {name!r}, which the base lacks"
        shape = (len(change.ids), table.facts.dim)
        if change.rows.shape != shape:
            return f"rows of table {name!r} are {change.rows.shape}, not {shape}"
        for ids in (change.ids, change.removed):
            if not bool((ids[1:] > ids[:-1]).all()):
                return f"ids of table {name!r} aren't sorted, each once"
        return ""


@dataclass(frozen=True, slots=True)
class View:
    """One version of a model, as long as it is open."""

    model: Model = field(repr=False)
    number: int
    moment: float
    dense: Mapping[str, NDArray[np.float32]]
    dense_number: int

    @property
    def version(self) -> Version:
        """Return which."""
        return Version(self.model.stream, self.number)

    def table(self, name: str) -> StreamTable:
        """Return what a table is.

        Raises:
            ServingTableError: if there is none of the name.
        """
        table = self.model.tables.get(name)
        if table is None:
            there = ", ".join(sorted(self.model.tables)) or "none"
            raise ServingTableError(table=name, there=there)
        return table.facts

    def lookup(self, name: str, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the rows of ids: int64 [q] to float32 [q, D].

        Raises:
            ServingTableError: if there is no such table.
            LookupRequestError: if ``ids`` are none.
        """
        self.table(name)
        if ids.dtype != np.int64 or ids.ndim != 1:
            rule = f"must be int64 [q], not {ids.dtype} {list(ids.shape)}"
            raise LookupRequestError(where=f"ids of table {name!r}", rule=rule)
        return self.model.tables[name].lookup(ids, self.number)
