"""``torch.optim.Adam``, and of rows without weight decay ``torch.optim.SparseAdam``."""

import math
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

__all__ = ["ADAM", "LAZY", "SMALL_EPS", "eps_broken", "of_torch"]

SMALL_EPS = 1e-9
"""An eps that bounds Adam's step by itself is at least this."""


def _dense(step: Any, value: Any, states: Any, grad: Any, functions: Any) -> Any:
    square_root, _cut = functions
    eps, keep, take, take_mean, correction, _none = step.constants
    mean = states[0] + (grad - states[0]) * take_mean
    square = states[1] * keep + grad * grad * take
    root = square_root(square) / correction
    return value - mean * step.rate / (root + eps), (mean, square)


def _lazy(step: Any, value: Any, states: Any, grad: Any, functions: Any) -> Any:
    square_root, _cut = functions
    eps, _keep, take, take_mean, _correction, _none = step.constants
    mean = states[0] + (grad - states[0]) * take_mean
    square = states[1] + (grad * grad - states[1]) * take
    return value - mean * step.rate / (square_root(square) + eps), (mean, square)


def _dense_numbers(constants: Constants, moment: Moment) -> Numbers:
    beta1, beta2 = constants["beta1"], constants["beta2"]
    correction = math.sqrt(1.0 - beta2**moment.step)
    rate = moment.lr / (1.0 - beta1**moment.step)
    kept = constants["eps"], beta2, 1.0 - beta2, 1.0 - beta1, correction
    return Numbers(rate, constants["weight_decay"], kept)


def _lazy_numbers(constants: Constants, moment: Moment) -> Numbers:
    """Fold the corrections into the rate, as SparseAdam does."""
    numbers = _dense_numbers(constants, moment)
    correction = numbers.constants[4]
    return numbers._replace(rate=numbers.rate * correction)


def _choose(constants: Constants, sparse: bool) -> int:  # noqa: FBT001 - of Rule.choose
    return int(sparse and not constants["weight_decay"])  # SparseAdam has none


def eps_broken(constants: Constants) -> Broken | None:
    """Return what is wrong with an eps by which a step would have no bound."""
    bounded = constants["beta1"] ** 2 < constants["beta2"]
    if constants["eps"] < SMALL_EPS and not bounded:
        rule = f"must be at least {SMALL_EPS:g} where beta1 squared isn't below beta2"
        return Broken("eps", rule)
    return None


def _check(constants: Constants) -> Broken | None:
    return eps_broken(constants) or first_wire.check(constants)


def of_torch(group: Mapping[str, Any]) -> Constants:
    """Return the constants of a group of ``torch.optim.Adam``, or of its like."""
    beta1, beta2 = group["betas"]
    return {
        "weight_decay": float(group["weight_decay"]),
        "beta1": float(beta1),
        "beta2": float(beta2),
        "eps": float(group["eps"]),
    }


LAZY = Formula(update=_lazy, numbers=_lazy_numbers)

ADAM = Rule(
    name="adam",
    constants=first_wire.CONSTANTS,
    columns=(
        Column(name="exp_avg", log2=52),
        Column(name="exp_avg_sq", not_negative=True),
    ),
    formulas=(Formula(update=_dense, numbers=_dense_numbers), LAZY),
    choose=_choose,
    check=_check,
    pace="even",
    counts_steps=True,
    torch=TorchForm(
        classes=("torch.optim.Adam",),
        rows_only=("torch.optim.SparseAdam",),
        constants=of_torch,
        kernels_only=True,
    ),
)
