"""``SparseSharedAdamSGDRule``: Adam with one pair of moments a part, means over weights."""

import math
from typing import Any

from paramfleet_shared.tables.rules.ctr.adam import BETAS, POWERS
from paramfleet_shared.tables.rules.ctr.record import PartRule, PartState

__all__ = ["SHARED_ADAM"]


def _begin(numbers: Any, states: Any, mean: Any, mean_square: Any) -> Any:
    keep, keep_square, _eps = numbers.constants
    average, square, power, power_square = states
    rate = numbers.rate * math.sqrt(1.0 - power_square) / (1.0 - power)
    kept = (
        keep * average + (1.0 - keep) * mean,
        keep_square * square + (1.0 - keep_square) * mean_square,
        power * keep,
        power_square * keep_square,
    )
    return (rate, average, square), kept


def _update(numbers: Any, value: Any, _states: Any, grad: Any, shared: Any) -> Any:
    keep, keep_square, eps = numbers.constants
    rate, average, square = shared
    mean = keep * average + (1.0 - keep) * grad
    own_square = keep_square * square + (1.0 - keep_square) * grad * grad
    return value - rate * mean / (math.sqrt(own_square) + eps), ()


SHARED_ADAM = PartRule(
    name="SparseSharedAdamSGDRule",
    constants=BETAS,
    of_part=(
        PartState(name="exp_avg"),
        PartState(name="exp_avg_sq", not_negative=True),
        *POWERS,
    ),
    begin=_begin,
    update=_update,
)
