"""Metrics that are counted batch by batch and added up over the workers."""

from typing import Protocol

import numpy as np
import torch

import paramfleet as fleet
from paramfleet.job_metrics import Metrics

__all__ = ["Auc", "Mean", "Metric"]

NUM_BUCKETS = 1 << 12
"""Paddle's ``num_thresholds`` of static.auc; scores of one bucket count as tied."""


class Metric(Protocol):
    """A number about all that was counted."""

    def value(self) -> float:
        """Return it of what this worker counted."""
        ...

    def merged(self) -> float:
        """Return it of what all workers counted; every worker calls it."""
        ...


class Auc:
    """Area under the ROC curve of probabilities, from histograms as Paddle keeps them.

    Args:
        num_buckets: Equal parts of [0, 1]; the last counts 1 by itself.
    """

    def __init__(self, num_buckets: int = NUM_BUCKETS) -> None:
        self._num_buckets = num_buckets
        self._counts = np.zeros((2, num_buckets + 1))

    def update(self, scores: torch.Tensor, labels: torch.Tensor) -> None:
        """Count examples.

        Args:
            scores: Probabilities in [0, 1], one an example; a NaN counts as 0.
            labels: As many; positive above 0.5.
        """
        flat = np.nan_to_num(scores.detach().cpu().double().numpy().ravel())
        buckets = (np.clip(flat, 0, 1) * self._num_buckets).astype(np.int64)
        positive = labels.detach().cpu().numpy().ravel() > 0.5
        for kind in (0, 1):
            chosen = buckets[positive == bool(kind)]
            self._counts[kind] += np.bincount(chosen, minlength=self._num_buckets + 1)

    def value(self) -> float:
        """Return the area of this worker's examples; 0.5 if a class is missing."""
        return Metrics(lambda counts, _: np.asarray(counts)).auc(*self._counts[::-1])

    def merged(self) -> float:
        """Return the area of all workers' examples."""
        return fleet.metrics.auc(*self._counts[::-1])


class Mean:
    """Mean of values, each of one example."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0

    def update(self, values: torch.Tensor) -> None:
        """Count values, one an example."""
        self._sum += float(values.detach().double().sum())
        self._count += values.numel()

    def value(self) -> float:
        """Return the mean of this worker's; NaN without any."""
        return self._sum / self._count if self._count else float("nan")

    def merged(self) -> float:
        """Return the mean of all workers'."""
        return fleet.metrics.acc(self._sum, self._count)
