"""``SparseNaiveSGDRule``: plain SGD, by the sum of the gradients."""

from typing import Any

from paramfleet_shared.tables.rules.ctr.record import PartRule

__all__ = ["NAIVE"]


def _begin(numbers: Any, _states: Any, _mean: Any, _mean_square: Any) -> Any:
    return numbers.rate, ()


def _update(_numbers: Any, value: Any, _states: Any, grad: Any, rate: Any) -> Any:
    return value - rate * grad, ()


NAIVE = PartRule(name="SparseNaiveSGDRule", begin=_begin, update=_update)
