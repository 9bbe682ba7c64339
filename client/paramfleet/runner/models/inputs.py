"""What metrics count, checked before it is counted."""

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet_shared.errors import ContractError

__all__ = ["MetricInputError", "check_probabilities", "check_sizes", "check_width", "flat_of"]

_SLACK = 1e-4
"""How far outside [0, 1] a probability may be by rounding, of 16 bits too."""


class MetricInputError(ContractError):
    """What a metric gets doesn't fit together, or isn't what it takes; nothing is counted."""

    code = "contract.metric_input"
    metric: str
    rule: str
    sentence = "{metric}: {rule}"


def flat_of(values: torch.Tensor) -> NDArray[np.float64]:
    """Return the values of a tensor of any shape, float64 [n]."""
    flat: NDArray[np.float64] = values.detach().cpu().double().numpy().ravel()
    return flat


def check_sizes(metric: object, scores: torch.Tensor, **others: object) -> None:
    """Pass if there is one of each for each score.

    Args:
        metric: The one that counts, for the error.
        scores: Of any shape.
        **others: Tensors, by what they are called.

    Raises:
        MetricInputError: if there are more or fewer, or one isn't a tensor.
    """
    for name, each in others.items():
        if not isinstance(each, torch.Tensor):
            rule = f"{name} must be a tensor, not {type(each).__name__}"
            raise MetricInputError(metric=type(metric).__name__, rule=rule)
        if each.numel() != scores.numel():
            rule = f"{scores.numel()} scores, but {each.numel()} {name}"
            raise MetricInputError(metric=type(metric).__name__, rule=rule)


def check_probabilities(metric: object, scores: NDArray[np.float64]) -> None:
    """Pass if scores are in [0, 1]; a NaN is none of these.

    Args:
        metric: The one that counts, for the error.
        scores: [n].

    Raises:
        MetricInputError: naming the one that is furthest outside.
    """
    if not scores.size:
        return
    least, most = float(np.fmin.reduce(scores)), float(np.fmax.reduce(scores))
    worst = least if -least > most - 1.0 else most
    if not -_SLACK <= worst <= 1.0 + _SLACK and worst == worst:  # noqa: PLR0124 (a NaN)
        rule = (
            f"scores must be probabilities from 0 to 1, and one is {worst:.6g}: of logits take "
            "`scores.sigmoid()`"
        )
        raise MetricInputError(metric=type(metric).__name__, rule=rule)


def check_width(metric: object, scores: torch.Tensor) -> None:
    """Pass if scores are those of candidates of queries.

    Args:
        metric: The one that counts, for the error.
        scores: [Q, C].

    Raises:
        MetricInputError: if they have another number of dimensions.
    """
    if scores.ndim != 2:
        rule = f"scores must be [queries, candidates], and have the shape {[*scores.shape]}"
        raise MetricInputError(metric=type(metric).__name__, rule=rule)
