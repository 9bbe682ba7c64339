"""``fleet.metrics``: metrics of the whole job from each worker's own sums.

Each takes what this worker counted (a number, array or tensor), adds it up over
the workers, and returns the same value in every one of them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Metrics"]

_Reduce = Callable[[Any, str], NDArray[Any]]


class Metrics:
    """The functions of ``fleet.metrics`` over one reduction."""

    def __init__(self, reduce: _Reduce) -> None:
        self._reduce = reduce

    def sum(self, input: Any) -> NDArray[Any]:  # noqa: A002 - Fleet's name
        """Return the sum over workers."""
        return self._reduce(input, "sum")

    def max(self, input: Any) -> NDArray[Any]:  # noqa: A002 - Fleet's name
        """Return the largest over workers."""
        return self._reduce(input, "max")

    def min(self, input: Any) -> NDArray[Any]:  # noqa: A002 - Fleet's name
        """Return the smallest over workers."""
        return self._reduce(input, "min")

    def auc(self, stat_pos: Any, stat_neg: Any) -> float:
        """Return the area under the ROC curve; 0.5 if a class is missing.

        Args:
            stat_pos: Histogram of the scores of positives, [buckets], low scores first.
            stat_neg: The same of negatives. Scores in one bucket count as tied.
        """
        pos = self._reduce(stat_pos, "sum").reshape(-1).astype(np.float64)[::-1]
        neg = self._reduce(stat_neg, "sum").reshape(-1).astype(np.float64)[::-1]
        if not pos.sum() or not neg.sum():
            return 0.5
        seen_pos = np.cumsum(pos)
        area = np.sum(neg * (seen_pos - pos / 2))
        return float(area / (pos.sum() * neg.sum()))

    def acc(self, correct: Any, total: Any) -> float:
        """Return correct / total over workers."""
        return self._ratio(correct, total)

    def mae(self, abserr: Any, total: Any) -> float:
        """Return the mean absolute error: summed absolute errors / total."""
        return self._ratio(abserr, total)

    def mse(self, sqrerr: Any, total: Any) -> float:
        """Return the mean squared error: summed squared errors / total."""
        return self._ratio(sqrerr, total)

    def rmse(self, sqrerr: Any, total: Any) -> float:
        """Return the root of ``mse``."""
        return float(np.sqrt(self._ratio(sqrerr, total)))

    def _ratio(self, part: Any, total: Any) -> float:
        summed = float(np.sum(self._reduce(part, "sum")))
        count = float(np.sum(self._reduce(total, "sum")))
        return summed / count if count else float("nan")
