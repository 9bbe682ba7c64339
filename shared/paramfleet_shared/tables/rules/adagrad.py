"""``torch.optim.Adagrad``."""

from collections.abc import Mapping
from typing import Any

from paramfleet_shared.tables.rules import first_wire
from paramfleet_shared.tables.rules.record import (
    Column,
    Constants,
    Formula,
    Moment,
    Numbers,
    Rule,
    TorchForm,
)

__all__ = ["ADAGRAD"]


def _update(step: Any, value: Any, states: Any, grad: Any, functions: Any) -> Any:
    square_root, _cut = functions
    total = states[0] + grad * grad
    return value - grad * step.rate / (square_root(total) + step.constants[0]), (total,)


def _numbers(constants: Constants, moment: Moment) -> Numbers:
    rate = moment.lr / (1.0 + (moment.step - 1) * constants["lr_decay"])
    return Numbers(rate, constants["weight_decay"], (constants["eps"],))


def _of_torch(group: Mapping[str, Any]) -> Constants:
    names = ("weight_decay", "lr_decay", "initial_accumulator_value", "eps")
    return {name: float(group[name]) for name in names}


ADAGRAD = Rule(
    name="adagrad",
    constants=first_wire.CONSTANTS,
    columns=(Column(name="sum", not_negative=True, merge="sum"),),
    first_state="initial_accumulator_value",
    formulas=(Formula(update=_update, numbers=_numbers),),
    check=first_wire.check,
    pace="first_gradients",
    counts_steps=True,
    torch=TorchForm(classes=("torch.optim.Adagrad",), constants=_of_torch),
)
