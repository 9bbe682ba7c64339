"""Sums over the workers of the step in progress, such as those of batch statistics.

A sum has a name, and a part of each worker that it waits for. The parts are added in rank
order, whatever the order of arrival, so that the same parts give the same bits. A sum is kept
until its step is over: who asks again gets the same.

Nothing here waits or sends.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.errors.served import TotalMismatchError, TotalsTooLargeError
from paramfleet_shared.values.ids import Rank

__all__ = ["KeptTotal", "StepTotals"]

MAX_BYTES = 256 << 20
"""Of all parts and sums of a step: those of ten thousand layers of a thousand channels."""

MAX_NAMES = 100_000
"""Of the sums of a step."""


class KeptTotal(NamedTuple):
    """A part of a sum, or the sum."""

    name: str
    rank: Rank | None
    """Whose part it is; None for the sum."""
    values: NDArray[np.float64]
    """[n]"""


class StepTotals:
    """The sums of one step at a time; one task owns them.

    Args:
        max_bytes: Of all parts and sums that are kept.
    """

    def __init__(self, *, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._parts: dict[str, dict[Rank, NDArray[np.float64]]] = {}
        self._whole: dict[str, NDArray[np.float64]] = {}

    def add(self, name: str, rank: Rank, values: NDArray[np.float64]) -> None:
        """Keep a worker's part of a sum; a second one of the same worker changes nothing.

        Args:
            name: Of the sum.
            rank: Whose part it is.
            values: float64 [n]; kept.

        Raises:
            TotalMismatchError: if another worker's part has another length.
            TotalsTooLargeError: if there is no room for it.
        """
        if name in self._whole:
            return
        parts = self._parts.get(name, {})
        if rank in parts:
            return
        for other, part in parts.items():
            if part.shape != values.shape:
                raise TotalMismatchError(
                    name=name, rank=rank, got=len(values), other=other, have=len(part)
                )
        is_new = name not in self._parts
        num_names = len(self._parts) + len(self._whole) + is_new
        if self._num_bytes + values.nbytes > self._max_bytes or num_names > MAX_NAMES:
            raise TotalsTooLargeError(name=name, rank=rank, limit=self._max_bytes)
        self._num_bytes += values.nbytes
        self._parts.setdefault(name, {})[rank] = values

    def settle(self, awaited: Collection[Rank]) -> list[str]:
        """Add up what is whole now.

        Args:
            awaited: The workers without whose part no sum is whole.

        Returns:
            The names of the new sums.
        """
        new = [name for name in self._parts if not self.missing(name, awaited)]
        for name in new:
            parts = self._parts.pop(name)
            total = np.zeros_like(next(iter(parts.values())))
            for rank in sorted(parts):
                total += parts[rank]
            self._num_bytes -= (len(parts) - 1) * total.nbytes
            self._whole[name] = total
        return new

    def missing(self, name: str, awaited: Collection[Rank]) -> list[Rank]:
        """Return the awaited workers whose part of a sum isn't here, in rank order."""
        parts = self._parts.get(name, {})
        return sorted(rank for rank in awaited if rank not in parts)

    def lacks(self, rank: Rank) -> bool:
        """Return whether a sum that another worker waits for lacks this worker's part."""
        return any(rank not in parts for parts in self._parts.values())

    def is_whole(self, name: str) -> bool:
        """Return whether a sum is there."""
        return name in self._whole

    def of(self, name: str) -> NDArray[np.float64]:
        """Return a sum, float64 [n]; it must be whole."""
        return self._whole[name]

    def kept(self) -> list[KeptTotal]:
        """Return all parts and sums, for another server that goes on with the step."""
        parts = [
            KeptTotal(name, rank, values)
            for name, of in self._parts.items()
            for rank, values in of.items()
        ]
        return parts + [KeptTotal(name, None, values) for name, values in self._whole.items()]

    def restore(self, kept: Iterable[KeptTotal]) -> None:
        """Go on with what another server had kept of the step.

        Raises:
            TotalMismatchError: if a worker's part has another length than the others.
            TotalsTooLargeError: if there is no room for it.
        """
        for each in kept:
            if each.rank is not None:
                self.add(each.name, each.rank, each.values)
                continue
            self._num_bytes += each.values.nbytes
            self._whole[each.name] = each.values

    def clear(self) -> None:
        """Forget all: the step is over."""
        self._parts.clear()
        self._whole.clear()
        self._num_bytes = 0
