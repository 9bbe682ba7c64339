"""``torch.optim.SGD`` with momentum, Nesterov's included."""

from collections.abc import Mapping
from typing import Any

from paramfleet_shared.tables.rules import first_wire
from paramfleet_shared.tables.rules.record import (
    Broken,
    Column,
    Constants,
    Formula,
    Moment,
    Numbers,
    Rule,
    TorchForm,
)

__all__ = ["MOMENTUM"]


def _heavy_ball(step: Any, value: Any, states: Any, grad: Any, _functions: Any) -> Any:
    buffer = states[0] * step.constants[0] + grad * step.constants[1]
    return value - buffer * step.rate, (buffer,)


def _nesterov(step: Any, value: Any, states: Any, grad: Any, _functions: Any) -> Any:
    keep = step.constants[0]
    buffer = states[0] * keep + grad * step.constants[1]
    return value - (grad + buffer * keep) * step.rate, (buffer,)


def _numbers(constants: Constants, moment: Moment) -> Numbers:
    # Torch starts the buffer as the gradient, undampened.
    take = 1.0 if moment.first else 1.0 - constants["dampening"]
    kept = constants["momentum"], take
    return Numbers(moment.lr, constants["weight_decay"], kept)


def _choose(constants: Constants, _sparse: bool) -> int:  # noqa: FBT001 - of Rule.choose
    return int(bool(constants["nesterov"]))


def _lazy_check(constants: Constants) -> Broken | None:
    if constants["dampening"] == 0.0:
        return None
    return Broken("dampening", "must be 0 for a sparse table: a row's first step is not marked")


def _of_torch(group: Mapping[str, Any]) -> Constants | None:
    momentum = float(group["momentum"])
    if not momentum:
        return None
    return {
        "weight_decay": float(group["weight_decay"]),
        "momentum": momentum,
        "dampening": float(group["dampening"]),
        "nesterov": bool(group["nesterov"]),
    }


MOMENTUM = Rule(
    name="momentum",
    constants=first_wire.CONSTANTS,
    columns=(Column(name="momentum_buffer", log2=77),),
    formulas=(
        Formula(update=_heavy_ball, numbers=_numbers),
        Formula(update=_nesterov, numbers=_numbers),
    ),
    choose=_choose,
    check=first_wire.check,
    lazy_check=_lazy_check,
    pace="gradients",
    torch=TorchForm(classes=("torch.optim.SGD",), constants=_of_torch),
)
