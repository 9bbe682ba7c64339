"""Which columns a row has, and where each lies in it.

Nothing else says it: memory, exports, files and kernels take offsets and widths from here.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec

__all__ = ["STORAGE_TYPES", "VALUE", "ColumnSpec", "RowLayout"]

STORAGE_TYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.int16),
    "bfloat16": np.dtype(np.uint16),
}
"""What arrays of a storage hold; 16 bits as integers, as kernels take them."""

VALUE = "value"
"""The column of a row's value."""

_FLOAT = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """Numbers that every row has."""

    name: str
    width: int
    """How many: of each value, or of some of them, or 1 of the row as a whole."""
    dtype: np.dtype[Any] = _FLOAT
    first: float = 0.0
    """What each is in a new row, but for the value, whose first numbers the table makes."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The columns of a row, one behind the other: the value first, the others in float32.

    Each begins at a multiple of 4 bytes, and so does the next row.
    """

    columns: tuple[ColumnSpec, ...]
    spans: dict[str, slice] = field(init=False, compare=False)
    """Where in a row each column is, by its name, in floats."""
    pitch: int = field(init=False, compare=False)
    """Floats from row to row."""

    def __post_init__(self) -> None:
        end, spans = 0, {}
        for column in self.columns:
            num_bytes = column.width * column.dtype.itemsize
            start, end = end, end + -(-num_bytes // _FLOAT.itemsize)
            spans[column.name] = slice(start, end)
        assert len(spans) == len(self.columns), "each column has a name of its own"
        assert all(column.dtype == _FLOAT for column in self.columns[1:]), self.columns
        object.__setattr__(self, "spans", spans)
        object.__setattr__(self, "pitch", end)

    @classmethod
    def of(cls, spec: TableSpec) -> "RowLayout":
        """Return the layout of a table's rows, as pservers keep them.

        A dense table's are its values, one by one.
        """
        value = ColumnSpec(VALUE, spec.dim, STORAGE_TYPES[spec.storage])
        return cls((value, *cls.of_states(spec.optimizer, spec.dim).columns))

    @classmethod
    def of_states(cls, optimizer: OptimizerSpec, dim: int) -> "RowLayout":
        """Return the layout of the states alone that a rule keeps beside ``dim`` values."""
        return cls(
            tuple(
                ColumnSpec(
                    column.name,
                    column.width(dim),
                    first=optimizer.initial_state if column.first is None else column.first,
                )
                for column in optimizer.columns
            )
        )

    @property
    def row_bytes(self) -> int:
        """Return the bytes from row to row."""
        return self.pitch * _FLOAT.itemsize

    @property
    def states(self) -> "RowLayout":
        """Return the layout of what stands beside the value, as exports and files hold it."""
        return RowLayout(self.columns[1:])

    @property
    def first(self) -> NDArray[np.float32]:
        """Return what every number of a new row is, float32 [pitch]; the columns are floats."""
        pieces = [np.full(column.width, column.first, _FLOAT) for column in self.columns]
        return np.concatenate([np.empty(0, _FLOAT), *pieces])

    def new_rows(self, num_rows: int) -> NDArray[np.float32]:
        """Return rows that nobody has trained, float32 [n, pitch]; the columns are floats."""
        return np.tile(self.first, (num_rows, 1))

    def and_column(self, column: ColumnSpec) -> "RowLayout":
        """Return the layout with one more column, behind the others."""
        return RowLayout((*self.columns, column))
