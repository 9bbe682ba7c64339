"""One optimizer state out of those of many workers, each of its own gradients.

* Adagrad's accumulators are sums of squares: the sum of what every worker has added to the
  first value. That is what one process would have that had seen all gradients.
* Adam's moments and momentum's buffer are means over the last gradients: the mean of those
  workers that stepped the row since they began alike, each weighted by how often it did. Where
  nobody did, all hold the same, and their mean is that.

A row that no worker has is as new.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.spec import OptimizerSpec

__all__ = ["UNKNOWN", "Held", "merged"]

UNKNOWN = -1
"""Count of a row that a worker doesn't have."""

# n = rows (dense: values), C = columns of state


class Held(NamedTuple):
    """What one worker holds of some rows."""

    counts: NDArray[np.int64]
    """[n]: how often it stepped each since all began alike; ``UNKNOWN`` where it has none."""
    states: NDArray[np.float32]
    """[n, C]"""


def merged(
    rule: OptimizerSpec, workers: Sequence[Held], *, num_rows: int, width: int
) -> NDArray[np.float32]:
    """Return the workers' states as one.

    Args:
        rule: Which keeps them.
        workers: Of the same rows, in the same order.
        num_rows: n.
        width: C.

    Returns:
        float32 [n, C].
    """
    first = rule.initial_state
    if rule.rule == "adagrad":
        total = np.full((num_rows, width), first, np.float64)
        for counts, states in workers:
            total += (states - np.float64(first)) * (counts != UNKNOWN)[:, None]
        return total.astype(np.float32)
    weights = [np.maximum(counts, 0).astype(np.float64) for counts, _ in workers]
    moved = sum(weights, np.zeros(num_rows)) > 0
    for weight, (counts, _) in zip(weights, workers, strict=True):
        weight[~moved] = counts[~moved] != UNKNOWN
    whole = sum(weights, np.zeros(num_rows))
    total = np.zeros((num_rows, width), np.float64)
    for weight, (_, states) in zip(weights, workers, strict=True):
        total += states * weight[:, None]
    total /= np.maximum(whole, 1.0)[:, None]
    total[whole == 0] = first
    return total.astype(np.float32)
