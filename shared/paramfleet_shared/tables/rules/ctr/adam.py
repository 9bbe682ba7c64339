"""``SparseAdamSGDRule``: Adam, whose corrections count a row's own steps."""

import math
from typing import Any

from paramfleet_shared.tables.rules.ctr.record import PartRule, PartState
from paramfleet_shared.tables.rules.record import Constant

__all__ = ["ADAM", "BETAS", "POWERS"]

BETAS = (
    Constant(name="beta1_decay_rate", default=0.9, below_most=True),
    Constant(name="beta2_decay_rate", default=0.999, below_most=True),
    Constant(name="ada_epsilon", default=1e-8, least=1e-30, most=1e6),
)

POWERS = (
    PartState(name="beta1_pow", first="beta1_decay_rate", not_negative=True),
    PartState(name="beta2_pow", first="beta2_decay_rate", not_negative=True),
)


def _begin(numbers: Any, states: Any, _mean: Any, _mean_square: Any) -> Any:
    rate = numbers.rate * math.sqrt(1.0 - states[1]) / (1.0 - states[0])
    keep, keep_square, _eps = numbers.constants
    return rate, (states[0] * keep, states[1] * keep_square)


def _update(numbers: Any, value: Any, states: Any, grad: Any, rate: Any) -> Any:
    keep, keep_square, eps = numbers.constants
    mean = keep * states[0] + (1.0 - keep) * grad
    square = keep_square * states[1] + (1.0 - keep_square) * grad * grad
    return value - rate * mean / (math.sqrt(square) + eps), (mean, square)


ADAM = PartRule(
    name="SparseAdamSGDRule",
    constants=BETAS,
    of_weights=(PartState(name="exp_avg"), PartState(name="exp_avg_sq", not_negative=True)),
    of_part=POWERS,
    begin=_begin,
    update=_update,
)
