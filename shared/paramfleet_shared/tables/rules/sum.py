"""Adding what is pushed: differences of workers that train apart."""

from typing import Any

from paramfleet_shared.tables.rules import first_wire
from paramfleet_shared.tables.rules.record import Constants, Formula, Moment, Numbers, Rule

__all__ = ["SUM"]


def _update(_step: Any, value: Any, _states: Any, grad: Any, _functions: Any) -> Any:
    return value + grad, ()


def _numbers(constants: Constants, moment: Moment) -> Numbers:
    return Numbers(moment.lr, constants["weight_decay"])


SUM = Rule(
    name="sum",
    constants=first_wire.CONSTANTS,
    formulas=(Formula(update=_update, numbers=_numbers),),
    check=first_wire.check,
    lazy_check=first_wire.weight_decay_broken,
    adds=True,
)
