"""Which parameters a checkpoint's dense tables hold.

A dense table is one vector, and its name says only which of the optimizer's parameter groups
it was. The manifest's ``parameters`` says for each table the names and shapes of its
parameters, in the order in which the vector has them. It may lack a table, or all of them:
a manifest of a former version does.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from paramfleet_shared.files.documents import whole
from paramfleet_shared.tables.spec import MOST_DIMENSIONS
from paramfleet_shared.values.texts import shown

__all__ = ["DenseParameters", "SavedParameter", "read_parameters"]


class SavedParameter(NamedTuple):
    """One parameter of a dense table."""

    name: str
    """As the model's ``named_parameters`` has it."""

    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Return how many values it has."""
        return math.prod(self.shape)

    def to_wire(self) -> dict[str, Any]:
        """Return plain values."""
        return {"name": self.name, "shape": list(self.shape)}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "SavedParameter":
        """Rebuild what ``to_wire`` returned.

        Raises:
            KeyError: if a value is missing.
            TypeError: if it can't be read at all.
            ValueError: if a value is of another kind.
        """
        name, shape = wire["name"], wire["shape"]
        if type(name) is not str or not name:
            rule = f"parameter name {shown(name)} is no text"
            raise ValueError(rule)
        if type(shape) is not list or len(shape) > MOST_DIMENSIONS:
            rule = f"parameter {shown(name)} has no list of at most {MOST_DIMENSIONS} lengths"
            raise ValueError(rule)
        return cls(name, tuple(whole(length, "shape") for length in shape))


DenseParameters = Mapping[str, tuple[SavedParameter, ...]]
"""Of each dense table that says them, by the table's name."""


def read_parameters(
    wire: Any, sizes: Mapping[str, int]
) -> dict[str, tuple[SavedParameter, ...]]:
    """Return the parameters that a manifest names.

    Args:
        wire: What it says.
        sizes: How many values each of its dense tables has.

    Raises:
        KeyError: if a value is missing.
        TypeError: if one can't be read at all.
        ValueError: if one is of another kind, a parameter is named twice, or those of a table
            don't have as many values as the table.
    """
    if type(wire) is not dict or any(type(each) is not list for each in wire.values()):
        raise ValueError("parameters is no map of lists")
    found = {
        table: tuple(SavedParameter.from_wire(each) for each in parameters)
        for table, parameters in wire.items()
    }
    names: set[str] = set()
    for table, parameters in found.items():
        if table not in sizes:
            rule = f"parameters of {shown(table)}, which is no dense table"
            raise ValueError(rule)
        values = sum(each.size for each in parameters)
        if values != sizes[table]:
            rule = (
                f"the parameters of table {shown(table)} have {shown(values)} values, and not "
                f"{sizes[table]}"
            )
            raise ValueError(rule)
        for each in parameters:
            if each.name in names:
                rule = f"parameter {shown(each.name)} is named twice"
                raise ValueError(rule)
            names.add(each.name)
    return found
