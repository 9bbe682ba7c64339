"""``torch.optim.AdamW``: Adam whose weight decay shrinks the value, not the gradient.

Without weight decay both step rows as ``torch.optim.SparseAdam``.
"""

from typing import Any

from paramfleet_shared.tables.rules.adam import ADAM, eps_broken, of_torch
from paramfleet_shared.tables.rules.record import (
    Constant,
    Constants,
    Formula,
    Moment,
    Numbers,
    Rule,
    TorchForm,
)

__all__ = ["ADAMW"]

_ADAM, _LAZY = ADAM.formulas


def _update(step: Any, value: Any, states: Any, grad: Any, functions: Any) -> Any:
    square_root, _cut = functions
    eps, keep, take, take_mean, correction, shrink = step.constants
    mean = states[0] + (grad - states[0]) * take_mean
    square = states[1] * keep + grad * grad * take
    root = square_root(square) / correction
    return value * shrink - mean * step.rate / (root + eps), (mean, square)


def _numbers(constants: Constants, moment: Moment) -> Numbers:
    numbers = _ADAM.numbers(constants, moment)
    # By less than -1 the value would grow from step to step, beyond all bounds.
    shrink = max(-1.0, 1.0 - moment.lr * constants["weight_decay"])
    return numbers._replace(weight_decay=0.0, constants=(*numbers.constants, shrink))


ADAMW = Rule(
    name="adamw",
    constants=(
        Constant(name="weight_decay", default=0.0, most=1e6),
        Constant(name="eps", default=1e-8, least=1e-30, most=1e6),
        Constant(name="beta1", default=0.9, below_most=True),
        Constant(name="beta2", default=0.999, below_most=True),
    ),
    columns=ADAM.columns,
    formulas=(Formula(update=_update, numbers=_numbers), _LAZY),
    choose=ADAM.choose,
    check=eps_broken,
    pace=ADAM.pace,
    counts_steps=True,
    torch=TorchForm(
        classes=("torch.optim.AdamW",),
        constants=of_torch,
        allows=frozenset({"decoupled_weight_decay"}),
    ),
)
