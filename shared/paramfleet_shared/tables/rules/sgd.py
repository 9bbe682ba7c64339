"""``torch.optim.SGD`` without momentum."""

from collections.abc import Mapping
from typing import Any

from paramfleet_shared.tables.rules import first_wire
from paramfleet_shared.tables.rules.record import (
    Constants,
    Formula,
    Moment,
    Numbers,
    Rule,
    TorchForm,
)

__all__ = ["SGD"]


def _update(step: Any, value: Any, _states: Any, grad: Any, _functions: Any) -> Any:
    return value - grad * step.rate, ()


def _numbers(constants: Constants, moment: Moment) -> Numbers:
    return Numbers(moment.lr, constants["weight_decay"])


def _of_torch(group: Mapping[str, Any]) -> Constants | None:
    if float(group["momentum"]):
        return None
    return {"weight_decay": float(group["weight_decay"])}


SGD = Rule(
    name="sgd",
    constants=first_wire.CONSTANTS,
    formulas=(Formula(update=_update, numbers=_numbers),),
    check=first_wire.check,
    pace="gradients",
    torch=TorchForm(classes=("torch.optim.SGD",), constants=_of_torch),
)
