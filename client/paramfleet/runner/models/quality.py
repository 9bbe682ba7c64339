"""Metrics of clicks and of rankings: how sure a model is, how right, and for whom."""

from abc import ABC, abstractmethod

import numpy as np
import torch
from typing_extensions import override

import paramfleet as fleet
from paramfleet.runner.models.inputs import (
    MetricInputError,
    check_probabilities,
    check_sizes,
    check_width,
    flat_of,
)
from paramfleet.runner.models.metrics import NUM_BUCKETS
from paramfleet.telemetry.job_metrics import Metrics
from paramfleet.telemetry.quality import MAX_CELLS, GroupCells, at_k, log_losses

__all__ = ["Calibration", "Gauc", "LogLoss", "NdcgAtK", "NormalizedEntropy", "RecallAtK"]

_OWN = Metrics(lambda own, _: np.asarray(own))
"""Of what this worker counted alone."""


class _OfSums(ABC):
    """A number that is made of sums, those of this worker or of all."""

    def value(self) -> float:
        """Return it of what this worker counted; NaN without what it needs."""
        return self._made_by(_OWN)

    def merged(self) -> float:
        """Return it of what all workers counted; call it in every worker."""
        return self._made_by(fleet.metrics)

    @abstractmethod
    def _made_by(self, metrics: Metrics) -> float:
        """Return the metric of this worker's sums."""


class _OfClicks(_OfSums):
    """Sums over examples; what is made of them is for the class to say."""

    def __init__(self) -> None:
        self._losses = self._predicted = 0.0
        self._clicks = self._total = 0

    def update(self, scores: torch.Tensor, labels: torch.Tensor) -> None:
        """Count examples.

        Args:
            scores: Probabilities in [0, 1], float [n] or of any shape, one an example.
            labels: As many; positive above 0.5.

        Raises:
            MetricInputError: if they aren't; nothing is counted.
        """
        check_sizes(self, scores, labels=labels)
        flat, positive = flat_of(scores), flat_of(labels)
        check_probabilities(self, flat)
        self._losses += float(log_losses(flat, positive).sum())
        self._predicted += float(flat.sum())
        self._clicks += int((positive > 0.5).sum())
        self._total += len(flat)


class LogLoss(_OfClicks):
    """Mean log loss in nats, ``fleet.metrics.log_loss``."""

    @override
    def _made_by(self, metrics: Metrics) -> float:
        return metrics.log_loss(self._losses, self._total)


class NormalizedEntropy(_OfClicks):
    """Log loss over that of the rate of clicks, ``fleet.metrics.normalized_entropy``."""

    @override
    def _made_by(self, metrics: Metrics) -> float:
        return metrics.normalized_entropy(self._losses, self._clicks, self._total)


class Calibration(_OfClicks):
    """Predicted over observed clicks, ``fleet.metrics.calibration``."""

    @override
    def _made_by(self, metrics: Metrics) -> float:
        return metrics.calibration(self._predicted, self._clicks)


class Gauc(_OfSums):
    """AUC inside each group, weighted by examples, ``fleet.metrics.gauc``.

    NaN without a group with both classes.

    Args:
        num_buckets: Equal parts of [0, 1]; scores in one count as tied.
        max_cells: Pairs of group and bucket that a worker keeps. Where there are more, groups
            are left out, by a hash of their ids; ``share`` says which part stays.
    """

    def __init__(self, num_buckets: int = NUM_BUCKETS, max_cells: int = MAX_CELLS) -> None:
        self._cells = GroupCells(num_buckets, max_cells)

    @property
    def share(self) -> float:
        """Return which part of the groups this worker counts: 1 if all."""
        return self._cells.share

    def update(self, scores: torch.Tensor, labels: torch.Tensor, groups: torch.Tensor) -> None:
        """Count examples.

        Args:
            scores: Probabilities in [0, 1], one an example; a NaN counts as 0.
            labels: As many; positive above 0.5.
            groups: As many ids, int64.

        Raises:
            MetricInputError: if they aren't; nothing is counted.
        """
        check_sizes(self, scores, labels=labels, groups=groups)
        if groups.is_floating_point():
            rule = f"groups must be whole numbers, not of {groups.dtype}"
            raise MetricInputError(metric=type(self).__name__, rule=rule)
        flat = flat_of(scores)
        check_probabilities(self, flat)
        ids = groups.detach().cpu().to(torch.int64).numpy().ravel()
        self._cells.update(ids, flat, flat_of(labels))

    @override
    def _made_by(self, metrics: Metrics) -> float:
        return metrics.gauc(self._cells)


class _AtK(_OfSums):
    """A mean over queries of what is among the k best.

    Args:
        k: How many that are.

    Raises:
        MetricInputError: if ``k`` is less than 1.
    """

    def __init__(self, k: int = 10) -> None:
        if k < 1:
            raise MetricInputError(
                metric=type(self).__name__, rule=f"k must be 1 or more, not {k}"
            )
        self._k = k
        self._sums = np.zeros(3)
        """Of recalls, normalised gains and queries."""

    def update(self, scores: torch.Tensor, labels: torch.Tensor) -> None:
        """Count queries.

        Args:
            scores: float [Q, C], of each candidate of each query; -inf for none. Candidates of
                one score share their places.
            labels: Relevance, [Q, C], none negative; relevant above 0.5.

        Raises:
            MetricInputError: if they have other shapes; nothing is counted.
        """
        check_width(self, scores)
        check_sizes(self, scores, labels=labels)
        width = max(1, scores.shape[1])
        self._sums += at_k(
            flat_of(scores).reshape(-1, width), flat_of(labels).reshape(-1, width), self._k
        )


class RecallAtK(_AtK):
    """Part of the relevant that is among the k best, ``fleet.metrics.recall_at_k``."""

    @override
    def _made_by(self, metrics: Metrics) -> float:
        return metrics.recall_at_k(self._sums[0], self._sums[2])


class NdcgAtK(_AtK):
    """How good the order of the k best is, ``fleet.metrics.ndcg_at_k``."""

    @override
    def _made_by(self, metrics: Metrics) -> float:
        return metrics.ndcg_at_k(self._sums[1], self._sums[2])
