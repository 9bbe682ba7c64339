"""What one step, or several merged ones, push."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.rows.batch import RowIds

__all__ = ["StepGradients", "TableGradient"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TableGradient:
    """One table's part of a step: float32 [U, D] of ``rows``, or a dense [P]."""

    name: str
    rows: RowIds | None
    grads: NDArray[np.float32]
    lr: float
    now: int = 0
    """When it is, as the rows keep it (``SparseTable.now``)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepGradients:
    """What one step, or several merged ones, pushes."""

    step: int
    """The last step that is in it, counted from 0."""
    examples: int
    parts: tuple[TableGradient, ...]
    first: int | None = None
    """The first step that is in it, if pushes of steps before may still be on their way."""
    state: NDArray[np.uint8] | None = None
    """Where this worker is at the end of ``step``, for a process that takes its place."""

    def rates(self) -> tuple[float, ...]:
        """Return the learning rate of each part."""
        return tuple(part.lr for part in self.parts)
