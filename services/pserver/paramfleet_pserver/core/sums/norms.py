"""Norms of the merged gradient of the step in progress, of what this server holds of it.

Each worker sends its gradients, and all get the same number: the sum of the powers of the
merged gradient's values, or the largest of their sizes. The gradients are multiplied and added
as the step will do it, in rank order. A norm is kept until its step is over: a worker that asks
again gets the same.

Nothing here waits or sends.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.core.reservoir import shares
from paramfleet_shared.errors import FleetError
from paramfleet_shared.errors.served import NormMismatchError
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.rows.routing import merge_by_inverse
from paramfleet_shared.values.ids import Rank

__all__ = ["LARGEST", "GradientPart", "NormPart", "NormUse", "StepNorms", "merged_power"]

LARGEST = math.inf
"""The order of a norm that is the largest size of a value."""

# n = rows, D = values of a row, or n values of a dense table


class GradientPart(NamedTuple):
    """A worker's gradient of one table, or of a range of it."""

    values: NDArray[np.float32]
    """[n, D], or [n] of a dense table."""
    ids: NDArray[np.int64] | None
    """[n], each once; None for a dense table."""


class NormPart(NamedTuple):
    """What a worker sends for a norm."""

    weight: float
    """As of its push in the step."""
    tables: Mapping[str, GradientPart]


class NormUse(NamedTuple):
    """Which norm of a step, and of which values."""

    number: int
    """Counts the norms that a worker asks for in a step, from 0."""
    piece: int
    """Counts the requests for one norm, from 0: gradients may be too many for one."""


class StepNorms:
    """The norms of one step at a time; one task owns them."""

    def __init__(self) -> None:
        self._parts: dict[NormUse, dict[Rank, NormPart]] = {}
        self._orders: dict[NormUse, float] = {}
        self._taken: set[NormUse] = set()
        """Those that are being computed, or were."""
        self._whole: dict[NormUse, float | FleetError] = {}

    def add(self, use: NormUse, rank: Rank, part: NormPart, order: float) -> None:
        """Keep a worker's part of a norm; a second one of the same worker changes nothing.

        What the worker has left of another norm that isn't whole is dropped: it asks for one at
        a time.

        Raises:
            NormMismatchError: if another worker asks for a norm of another order, or has other
                widths of tables.
        """
        if use in self._taken or rank in self._parts.get(use, {}):
            return
        for other, theirs in self._parts.get(use, {}).items():
            what = _difference(part, theirs)
            if order != self._orders[use]:
                what = f"norm_type {order:g} and {self._orders[use]:g}"
            if what:
                raise NormMismatchError(rank=rank, other=other, what=what)
        for parts in self._parts.values():
            parts.pop(rank, None)
        self._parts.setdefault(use, {})[rank] = part
        self._orders[use] = order

    def lacks(self, rank: Rank) -> bool:
        """Return whether a norm that another worker waits for lacks this worker's part."""
        return any(parts and rank not in parts for parts in self._parts.values())

    def missing(self, use: NormUse, awaited: Collection[Rank]) -> list[Rank]:
        """Return the awaited workers whose part of a norm isn't here, in rank order."""
        parts = self._parts.get(use, {})
        return sorted(rank for rank in awaited if rank not in parts)

    def open(self) -> list[NormUse]:
        """Return the norms that wait for parts."""
        return [use for use, parts in self._parts.items() if parts]

    def take(self, use: NormUse) -> tuple[dict[Rank, NormPart], float]:
        """Return the parts of a norm by rank, and its order; they are kept no more."""
        self._taken.add(use)
        return self._parts.pop(use), self._orders.pop(use)

    def note(self, use: NormUse, found: float | FleetError) -> None:
        """Keep a norm that was computed from what was taken, or why it couldn't be."""
        self._whole[use] = found

    def of(self, use: NormUse) -> float | None:
        """Return a norm; None if it isn't whole.

        Raises:
            FleetError: if it couldn't be computed.
        """
        found = self._whole.get(use)
        if isinstance(found, FleetError):
            raise found
        return found

    def clear(self) -> None:
        """Forget all: the step is over."""
        self._parts.clear()
        self._orders.clear()
        self._taken.clear()
        self._whole.clear()


def merged_power(parts: Mapping[Rank, NormPart], order: float, *, sums: bool) -> float:
    """Return the sum of powers of the merged gradient's values, or their largest size.

    It is NaN or infinite where a value is.

    Args:
        parts: Of all workers whose gradients count.
        order: The power; ``LARGEST`` for the largest size.
        sums: Whether the step's gradient is the sum of the workers', and not their mean.
    """
    scales = shares({rank: part.weight for rank, part in parts.items()}, sums=sums)
    names = sorted({name for part in parts.values() for name in part.tables})
    powers = []
    for name in names:
        of_table = [
            (part.tables[name], scales[rank])
            for rank, part in sorted(parts.items())
            if name in part.tables and scales[rank]
        ]
        powers.append(_power(_merged(of_table), order))
    if order == LARGEST:
        return float(np.max(powers, initial=0.0))
    return float(np.sum(powers))


def _merged(parts: Sequence[tuple[GradientPart, float]]) -> NDArray[np.float32]:
    """Return the values of a table's merged gradient, in any order."""
    scaled = [part.values * np.float32(scale) for part, scale in parts]
    if not scaled:
        return np.empty(0, np.float32)
    found = [part.ids for part, _ in parts]
    if len(scaled) == 1:
        return scaled[0]
    if found[0] is None:
        total: NDArray[np.float32] = np.add.reduce(scaled)
        return total
    ids = np.concatenate([each for each in found if each is not None])
    different, inverse, _ = partition(ids, 1)
    return merge_by_inverse(np.concatenate(scaled), inverse, len(different))


def _power(values: NDArray[np.float32], order: float) -> float:
    if not values.size:
        return 0.0
    if order == LARGEST:
        return float(np.abs(values).max())
    wide = values.reshape(-1).astype(np.float64)
    return float(wide @ wide) if order == 2 else float((np.abs(wide) ** order).sum())


def _difference(one: NormPart, other: NormPart) -> str:
    """Return what makes two parts not of the same gradient; empty for nothing."""
    for name in sorted(one.tables.keys() & other.tables.keys()):
        own, theirs = one.tables[name], other.tables[name]
        own_shape, their_shape = own.values.shape, theirs.values.shape
        if (own.ids is None) != (theirs.ids is None) or own_shape[1:] != their_shape[1:]:
            return f"table {name!r} of other widths"
        if own.ids is None and own_shape != their_shape:
            return f"table {name!r} of {own_shape[0]} and {their_shape[0]} values"
    return ""
