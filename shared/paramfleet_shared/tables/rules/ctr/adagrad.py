"""``SparseAdaGradSGDRule``: one sum of squares a part, which the step before it decides."""

import math
from typing import Any

from paramfleet_shared.tables.rules.ctr.record import PartRule, PartState
from paramfleet_shared.tables.rules.record import Constant

__all__ = ["ADAGRAD", "FIRST_SUM"]

FIRST_SUM = Constant(name="initial_g2sum", default=3.0, least=1e-6, most=1e30)
"""Above 0: without it the first step would divide by zero."""


def _begin(numbers: Any, states: Any, _mean: Any, mean_square: Any) -> Any:
    first = numbers.constants[0]
    rate = numbers.rate * math.sqrt(first / (first + states[0]))
    return rate, (states[0] + mean_square,)


def _update(_numbers: Any, value: Any, _states: Any, grad: Any, rate: Any) -> Any:
    return value - rate * grad, ()


ADAGRAD = PartRule(
    name="SparseAdaGradSGDRule",
    constants=(FIRST_SUM,),
    of_part=(PartState(name="g2sum", not_negative=True, merge="sum"),),
    per_show=True,
    begin=_begin,
    update=_update,
)
