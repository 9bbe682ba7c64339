"""One optimizer state out of those of many workers, each of its own gradients.

* A column of sums of squares, as Adagrad's: the sum of what every worker has added to the
  first value. That is what one process would have that had seen all gradients.
* A column of means over the last gradients, as Adam's moments and momentum's buffer: the mean
  of those workers that stepped the row since they began alike, each weighted by how often it
  did. Where nobody did, all hold the same, and their mean is that.

A row that no worker has is as new.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.spec import OptimizerSpec

__all__ = ["UNKNOWN", "Held", "merged"]

UNKNOWN = -1
"""Count of a row that a worker doesn't have."""

# n = rows (dense: values), C = floats of state of each


class Held(NamedTuple):
    """What one worker holds of some rows."""

    counts: NDArray[np.int64]
    """[n]: how often it stepped each since all began alike; ``UNKNOWN`` where it has none."""
    states: NDArray[np.float32]
    """[n, C]"""


def merged(
    rule: OptimizerSpec, workers: Sequence[Held], *, num_rows: int, dim: int
) -> NDArray[np.float32]:
    """Return the workers' states as one.

    Args:
        rule: Which keeps them.
        workers: Of the same rows, in the same order.
        num_rows: n.
        dim: Values of a row; 1 of a dense table.

    Returns:
        float32 [n, C].
    """
    layout = RowLayout.of_states(rule, dim)
    whole = np.empty((num_rows, layout.pitch), np.float32)
    for column in rule.columns:
        span = layout.spans[column.name]
        columns = [Held(counts, states[:, span]) for counts, states in workers]
        together = _sum_of if column.merge == "sum" else _mean_of
        whole[:, span] = together(columns, whole[:, span].shape, rule.initial_state)
    return whole


def _sum_of(
    workers: Sequence[Held], shape: tuple[int, int], first: float
) -> NDArray[np.float64]:
    """Return the first number and what each worker has added to it, float64 ``shape``."""
    total = np.full(shape, first, np.float64)
    for counts, states in workers:
        total += (states - np.float64(first)) * (counts != UNKNOWN)[:, None]
    return total


def _mean_of(
    workers: Sequence[Held], shape: tuple[int, int], first: float
) -> NDArray[np.float64]:
    """Return the mean weighted by the workers' steps, float64 ``shape``."""
    num_rows = shape[0]
    weights = [np.maximum(counts, 0).astype(np.float64) for counts, _ in workers]
    moved = sum(weights, np.zeros(num_rows)) > 0
    for weight, (counts, _) in zip(weights, workers, strict=True):
        weight[~moved] = counts[~moved] != UNKNOWN
    whole = sum(weights, np.zeros(num_rows))
    total = np.zeros(shape, np.float64)
    for weight, (_, states) in zip(weights, workers, strict=True):
        total += states * weight[:, None]
    total /= np.maximum(whole, 1.0)[:, None]
    total[whole == 0] = first
    return total
