"""``fleet.metrics``: metrics of the whole job from each worker's own sums.

Each takes what this worker counted (a number, array or tensor), adds it up over
the workers, and returns the same value in every one of them. Call each in every worker, in
the same order; not inside ``if fleet.is_first_worker():``.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet.telemetry.quality import GroupCells, entropy, group_auc

__all__ = ["Metrics"]

_Reduce = Callable[[Any, str], NDArray[Any]]
_Gather = Callable[[Any], list[Any]]

_CELLS_AT_ONCE = 1 << 18
"""Of all workers together: 8 MiB."""


class Metrics:
    """The functions of ``fleet.metrics`` over one reduction.

    Call each in every worker, in the same order; not inside ``if fleet.is_first_worker():``.

    Args:
        reduce: Reduces an array over the workers, by ``sum``, ``min`` or ``max``.
        gather: Returns every worker's plain value by rank. By default there is one worker.
    """

    def __init__(self, reduce: _Reduce, gather: _Gather = lambda own: [own]) -> None:
        self._reduce = reduce
        self._gather = gather

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

    def log_loss(self, losses: Any, total: Any) -> float:
        """Return the mean log loss in nats: ``-(1/N) sum(y ln p + (1 - y) ln(1 - p))``.

        Args:
            losses: This worker's sum of its examples' log losses; a number.
            total: How many examples these are.
        """
        return self._ratio(losses, total)

    def normalized_entropy(self, losses: Any, clicks: Any, total: Any) -> float:
        """Return the log loss over that of the rate of clicks alone; it is below 1 if good.

        It is ``log_loss / -(c ln c + (1 - c) ln(1 - c))`` with ``c = clicks / total`` of all
        workers (He et al., Practical Lessons from Predicting Clicks on Ads at Facebook, 2014).
        NaN without both classes.

        Args:
            losses: This worker's sum of its examples' log losses, in nats; a number.
            clicks: How many of them were positive.
            total: How many there were.
        """
        lost, clicked, count = (float(each) for each in self._sums(losses, clicks, total))
        of_rate = entropy(clicked / count) if count else 0.0
        return lost / count / of_rate if of_rate else float("nan")

    def calibration(self, predicted: Any, clicks: Any) -> float:
        """Return predicted over observed clicks; 1 is best, above it a model promises too much.

        NaN without clicks (He et al., 2014).

        Args:
            predicted: This worker's sum of its predicted probabilities.
            clicks: How many of its examples were positive.
        """
        return self._ratio(predicted, clicks)

    def gauc(self, cells: GroupCells) -> float:
        """Return the mean of each group's AUC, weighted by its examples; NaN without any.

        It is ``sum(n_g AUC_g) / sum(n_g)`` over groups with both classes, where ``n_g`` are a
        group's examples in all workers (Zhou et al., Deep Interest Network, 2018). A group's
        examples may be spread over workers. Memory is bounded: the workers exchange their
        cells a part of the groups at a time.

        Args:
            cells: This worker's counts; scores in one bucket count as tied. Where a worker had
                to forget groups, all leave those out.
        """
        halvings = int(np.max(self._reduce(65 - cells.below.bit_length(), "max")))
        own = cells.part(0, 1)
        own.limit(1 << (64 - halvings))
        total = int(np.sum(self._reduce(len(own.groups), "sum")))
        parts = max(1, -(-total // _CELLS_AT_ONCE))
        area = weight = 0.0
        for number in range(parts):
            part = own.part(number, parts)
            raw = [each.tobytes() for each in (part.groups, part.buckets, part.counts)]
            together = GroupCells(cells.num_buckets, max_cells=total + 1)
            for groups, buckets, counts in self._gather(raw):
                other = GroupCells(cells.num_buckets)
                other.groups = np.frombuffer(groups, np.int64)
                other.buckets = np.frombuffer(buckets, np.int64)
                other.counts = np.frombuffer(counts, np.int64).reshape(2, -1)
                together.merge(other)
            of_part, examples = group_auc(together)
            area, weight = area + of_part, weight + examples
        return area / weight if weight else float("nan")

    def recall_at_k(self, recalls: Any, queries: Any) -> float:
        """Return the mean over queries of ``relevant among the k best / relevant``.

        Args:
            recalls: This worker's sum of its queries' recalls.
            queries: How many these are; only those with something relevant.
        """
        return self._ratio(recalls, queries)

    def ndcg_at_k(self, gains: Any, queries: Any) -> float:
        """Return the mean over queries of ``DCG@k / DCG@k`` of the best order.

        ``DCG@k = sum(label_i / log2(i + 1))`` over places 1 to k (Järvelin and Kekäläinen,
        Cumulated Gain-Based Evaluation of IR Techniques, 2002).

        Args:
            gains: This worker's sum of its queries' normalised gains.
            queries: How many these are; only those with something relevant.
        """
        return self._ratio(gains, queries)

    def _sums(self, *parts: Any) -> NDArray[np.float64]:
        own = np.array([float(np.sum(np.asarray(part, np.float64))) for part in parts])
        return self._reduce(own, "sum")

    def _ratio(self, part: Any, total: Any) -> float:
        summed = float(np.sum(self._reduce(part, "sum")))
        count = float(np.sum(self._reduce(total, "sum")))
        return summed / count if count else float("nan")
