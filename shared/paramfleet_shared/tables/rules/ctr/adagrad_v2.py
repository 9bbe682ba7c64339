"""``SparseAdaGradV2SGDRule``: the usual Adagrad, with one sum of squares a part."""

import math
from typing import Any

from paramfleet_shared.tables.rules.ctr.adagrad import FIRST_SUM
from paramfleet_shared.tables.rules.ctr.record import PartRule, PartState

__all__ = ["ADAGRAD_V2"]

_EPS = 1e-8


def _begin(numbers: Any, states: Any, _mean: Any, mean_square: Any) -> Any:
    total = states[0] + mean_square
    return numbers.rate / (math.sqrt(total) + _EPS), (total,)


def _update(_numbers: Any, value: Any, _states: Any, grad: Any, rate: Any) -> Any:
    return value - rate * grad, ()


ADAGRAD_V2 = PartRule(
    name="SparseAdaGradV2SGDRule",
    constants=(FIRST_SUM,),  # which this rule has and doesn't use, as in Fleet
    of_part=(PartState(name="g2sum", not_negative=True, merge="sum"),),
    per_show=True,
    begin=_begin,
    update=_update,
)
