"""Metrics that are counted batch by batch and added up over the workers."""

from typing import Protocol

import numpy as np
import torch
from typing_extensions import override

import paramfleet as fleet
from paramfleet.runner.models.inputs import check_probabilities, check_sizes, flat_of
from paramfleet.telemetry.job_metrics import Metrics

__all__ = ["Accuracy", "Auc", "Mae", "Mean", "Metric", "Mse", "Precision", "Recall", "Rmse"]

NUM_BUCKETS = 1 << 12
"""Paddle's ``num_thresholds`` of static.auc; scores of one bucket count as tied."""


class Metric(Protocol):
    """A number about all that was counted."""

    def value(self) -> float:
        """Return it of what this worker counted."""
        ...

    def merged(self) -> float:
        """Return it of what all workers counted; call it in every worker."""
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

        Raises:
            MetricInputError: if they aren't; nothing is counted.
        """
        check_sizes(self, scores, labels=labels)
        given = flat_of(scores)
        check_probabilities(self, given)
        flat = np.nan_to_num(given)
        buckets = (np.clip(flat, 0, 1) * self._num_buckets).astype(np.int64)
        positive = labels.detach().cpu().numpy().ravel() > 0.5
        for kind in (0, 1):
            chosen = buckets[positive == bool(kind)]
            self._counts[kind] += np.bincount(chosen, minlength=self._num_buckets + 1)

    def value(self) -> float:
        """Return the area of this worker's examples; 0.5 if a class is missing."""
        return Metrics(lambda counts, _: np.asarray(counts)).auc(*self._counts[::-1])

    def merged(self) -> float:
        """Return the area of all workers' examples; call it in every worker."""
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
        """Return the mean of all workers'; call it in every worker."""
        return fleet.metrics.acc(self._sum, self._count)


class _OfExamples:
    """A mean over examples; what of each is for the class to say."""

    def __init__(self) -> None:
        self._mean = Mean()

    def value(self) -> float:
        """Return the mean of this worker's; NaN without any."""
        return self._mean.value()

    def merged(self) -> float:
        """Return the mean of all workers'; call it in every worker."""
        return self._mean.merged()


class Accuracy(_OfExamples):
    """Share of the examples that were classified rightly, as Paddle's of this name.

    Args:
        topk: With several classes: a label is right if it is among so many best scores.
    """

    def __init__(self, topk: int = 1) -> None:
        super().__init__()
        self._topk = topk

    def update(self, scores: torch.Tensor, labels: torch.Tensor) -> None:
        """Count examples.

        Args:
            scores: Probabilities [B] or [B, 1], for positive above 0.5; or a score a class,
                [B, classes].
            labels: As many; positive above 0.5, or the number of the class.

        Raises:
            MetricInputError: if there are more or fewer labels; nothing is counted.
        """
        if scores.ndim < 2 or scores.shape[1] == 1:
            check_sizes(self, scores, labels=labels)
            right = _positive(scores) == _positive(labels)
        else:
            best = scores.topk(min(self._topk, scores.shape[1]), dim=1).indices
            right = (best == labels.reshape(-1, 1)).any(dim=1)
        self._mean.update(right)


class Precision(_OfExamples):
    """Share of positives among the examples that were taken for positive; NaN without any."""

    def update(self, scores: torch.Tensor, labels: torch.Tensor) -> None:
        """Count examples.

        Args:
            scores: Probabilities in [0, 1], one an example; for positive above 0.5.
            labels: As many; positive above 0.5.

        Raises:
            MetricInputError: if there are more or fewer labels; nothing is counted.
        """
        check_sizes(self, scores, labels=labels)
        self._mean.update(_positive(labels)[_positive(scores)])


class Recall(_OfExamples):
    """Share of the positives that were taken for positive; NaN without positives."""

    def update(self, scores: torch.Tensor, labels: torch.Tensor) -> None:
        """Count examples.

        Args:
            scores: Probabilities in [0, 1], one an example; for positive above 0.5.
            labels: As many; positive above 0.5.

        Raises:
            MetricInputError: if there are more or fewer labels; nothing is counted.
        """
        check_sizes(self, scores, labels=labels)
        self._mean.update(_positive(scores)[_positive(labels)])


class Mae(_OfExamples):
    """Mean absolute error."""

    def update(self, outputs: torch.Tensor, labels: torch.Tensor) -> None:
        """Count examples, a number of each and as many labels."""
        self._mean.update(_error(outputs, labels).abs())


class Mse(_OfExamples):
    """Mean squared error."""

    def update(self, outputs: torch.Tensor, labels: torch.Tensor) -> None:
        """Count examples, a number of each and as many labels."""
        self._mean.update(_error(outputs, labels).square())


class Rmse(Mse):
    """Root of the mean squared error."""

    @override
    def value(self) -> float:
        return float(np.sqrt(super().value()))

    @override
    def merged(self) -> float:
        return float(np.sqrt(super().merged()))


def _positive(values: torch.Tensor) -> torch.Tensor:
    """Return which values are above 0.5, bool [values]."""
    return values.detach().reshape(-1) > 0.5


def _error(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return outputs.detach().double().reshape(-1) - labels.double().reshape(-1)
