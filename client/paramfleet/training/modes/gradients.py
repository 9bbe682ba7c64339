"""What one step, or several merged ones, push."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paramfleet.tables.dense import SetValues
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.values.spans import Span

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
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Those of the table's rule that differ in this step from the declared ones."""
    spans: tuple[Span, ...] | None = None
    """Which values of a dense table have a gradient; None for all."""
    set_before: SetValues | None = None
    """Values of a dense table that the program has changed itself."""

    @property
    def pace(self) -> tuple[float, Mapping[str, float]]:
        """Return how far it steps: gradients of one pace may be summed."""
        return self.lr, self.numbers


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

    @property
    def sets_values(self) -> bool:
        """Whether the program has changed dense values before the step."""
        return any(part.set_before is not None for part in self.parts)

    def goes_with(self, later: "StepGradients") -> bool:
        """Return whether a later step may be summed with this one: it goes by the same rates.

        One before which the program has set values must not.
        """
        if later.sets_values:
            return False
        paces = {part.name: part.pace for part in self.parts}
        return all(paces.get(part.name, part.pace) == part.pace for part in later.parts)
