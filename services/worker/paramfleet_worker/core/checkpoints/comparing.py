"""What differs between two checkpoints, a part of a table at a time.

Shape legend: n = rows, D = width of a row, W = numbers of a row's optimizer state,
S = columns of state of a dense table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "NO_CHANGES",
    "Changes",
    "Rows",
    "changes_of_rows",
    "changes_of_values",
    "options_that_differ",
]


class Rows(NamedTuple):
    """Some rows of a sparse table."""

    ids: NDArray[np.int64]
    """int64 [n]."""

    values: NDArray[np.float32]
    """float32 [n, D]."""

    states: NDArray[np.float32]
    """float32 [n, W]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """How a table, or a part of one, differs between two checkpoints, A and B."""

    only_in_a: int = 0
    """Rows."""

    only_in_b: int = 0
    changed_values: int = 0
    """Rows that both have, with other values; of a dense table, its values."""

    changed_states: int = 0
    """The same, with other optimizer states."""

    largest: float = 0.0
    """The largest difference of two values; infinite if one of them isn't finite."""

    largest_state: float = 0.0
    """The same of two numbers of optimizer states."""

    @property
    def any(self) -> bool:
        """Return whether anything differs."""
        return self != NO_CHANGES

    def plus(self, other: "Changes") -> "Changes":
        """Return what two parts of a table have together."""
        return Changes(
            only_in_a=self.only_in_a + other.only_in_a,
            only_in_b=self.only_in_b + other.only_in_b,
            changed_values=self.changed_values + other.changed_values,
            changed_states=self.changed_states + other.changed_states,
            largest=max(self.largest, other.largest),
            largest_state=max(self.largest_state, other.largest_state),
        )


NO_CHANGES = Changes()


def changes_of_rows(a: Rows, b: Rows) -> Changes:
    """Return how rows differ; those of one id are compared, wherever they stand.

    States are compared if both have as many columns.
    """
    both, at_a, at_b = np.intersect1d(a.ids, b.ids, return_indices=True)
    values = _differing(a.values[at_a], b.values[at_b])
    states = _NOTHING
    if a.states.shape[1] == b.states.shape[1]:
        states = _differing(a.states[at_a], b.states[at_b])
    return Changes(
        only_in_a=len(a.ids) - len(both),
        only_in_b=len(b.ids) - len(both),
        changed_values=values.rows,
        changed_states=states.rows,
        largest=values.largest,
        largest_state=states.largest,
    )


def changes_of_values(
    a: tuple[NDArray[np.float32], NDArray[np.float32]],
    b: tuple[NDArray[np.float32], NDArray[np.float32]],
) -> Changes:
    """Return how the same range of a dense table differs.

    Args:
        a: Values float32 [n], and states float32 [S, n], which are compared if both have as
            many columns.
        b: The same of the other checkpoint.
    """
    values = _differing(a[0][:, None], b[0][:, None])
    states = _NOTHING
    if len(a[1]) == len(b[1]):
        states = _differing(a[1].T, b[1].T)
    return Changes(
        changed_values=values.rows,
        changed_states=states.rows,
        largest=values.largest,
        largest_state=states.largest,
    )


def options_that_differ(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the options of a table that differ, each with both values.

    How many shards a table has follows from the job, and makes no difference.

    Args:
        a: The table as ``TableSpec.to_wire`` has it.
        b: The same of the other checkpoint.
    """
    flat_a, flat_b = _flat(a), _flat(b)
    return {
        name: [flat_a.get(name), flat_b.get(name)]
        for name in dict.fromkeys([*flat_a, *flat_b])
        if name != "num_shards" and flat_a.get(name) != flat_b.get(name)
    }


class _Differing(NamedTuple):
    rows: int
    largest: float


_NOTHING = _Differing(0, 0.0)


def _differing(a: NDArray[np.float32], b: NDArray[np.float32]) -> _Differing:
    """Return how many rows differ, and by how much at most.

    Zeros of either sign are equal, and so are numbers of the same bits.
    """
    bits_a, bits_b = (np.ascontiguousarray(each).view(np.uint32) for each in (a, b))
    differ = (bits_a != bits_b) & (a != b)
    rows = differ.any(axis=1)
    if not rows.any():
        return _NOTHING
    with np.errstate(invalid="ignore"):
        sizes = np.abs(a[differ].astype(np.float64) - b[differ])
    return _Differing(int(rows.sum()), float(np.where(np.isnan(sizes), np.inf, sizes).max()))


def _flat(wire: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with those of a nested map under names such as ``optimizer.rule``."""
    found: dict[str, Any] = {}
    for name, value in wire.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{inner}": each for inner, each in value.items()}
        else:
            found[name] = value
    return found
