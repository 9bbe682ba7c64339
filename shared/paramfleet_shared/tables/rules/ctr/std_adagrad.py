"""``StdAdaGradSGDRule``: as ``SparseAdaGradSGDRule``, with a sum of squares a weight."""

import math
from typing import Any

from paramfleet_shared.tables.rules.ctr.adagrad import FIRST_SUM
from paramfleet_shared.tables.rules.ctr.record import PartRule, PartState

__all__ = ["STD_ADAGRAD"]


def _begin(numbers: Any, _states: Any, _mean: Any, _mean_square: Any) -> Any:
    return numbers.constants[0], ()


def _update(numbers: Any, value: Any, states: Any, grad: Any, first: Any) -> Any:
    rate = numbers.rate * math.sqrt(first / (first + states[0]))
    return value - rate * grad, (states[0] + grad * grad,)


STD_ADAGRAD = PartRule(
    name="StdAdaGradSGDRule",
    constants=(FIRST_SUM,),
    of_weights=(PartState(name="g2sum", not_negative=True, merge="sum"),),
    per_show=True,
    begin=_begin,
    update=_update,
)
