"""From a torch optimizer to the rule that the pservers run.

The servers run four optimizers, numerically those of ``torch.optim``. The
learning rate isn't part of a rule: it travels with every push, so that torch's
schedulers work unchanged.
"""

import math
from typing import Any

import torch

from paramfleet_shared.bounds import MAX_LEARNING_RATE
from paramfleet_shared.errors import ContractError
from paramfleet_shared.tables.spec import OptimizerSpec

__all__ = [
    "STATE_NAMES",
    "OptimizerNotServedError",
    "OptimizerOptionError",
    "RuleChangedError",
    "check_options",
    "is_served",
    "server_rule",
]

STATE_NAMES: dict[str, tuple[str, ...]] = {
    "sum": (),
    "sgd": (),
    "momentum": ("momentum_buffer",),
    "adagrad": ("sum",),
    "adam": ("exp_avg", "exp_avg_sq"),
}
"""What torch calls the state columns of each rule, in the servers' order."""

_NOT_SERVED = ("amsgrad", "maximize", "differentiable", "decoupled_weight_decay")
"""Options of torch's optimizers that change the numbers and that servers don't have."""


_NOT_NEGATIVE = frozenset(
    {"weight_decay", "eps", "momentum", "lr_decay", "initial_accumulator_value"}
)
"""Options whose negatives are mistakes in every optimizer that has them."""


class OptimizerNotServedError(ContractError):
    """The pservers can't run this optimizer, or one of its options."""

    code = "contract.optimizer_not_served"

    def __init__(self, *, optimizer: str, option: str, remedy: str) -> None:
        with_option = f" with {option}" if option else ""
        super().__init__(
            f"pservers don't run {optimizer}{with_option}: {remedy}",
            optimizer=optimizer,
            option=option,
            remedy=remedy,
        )
        self.optimizer = optimizer
        self.option = option


class OptimizerOptionError(ContractError):
    """An option of the optimizer is a number that no training can use."""

    code = "contract.optimizer_option"

    def __init__(self, *, optimizer: str, option: str, value: float, rule: str) -> None:
        super().__init__(
            f"{optimizer} with {option} = {value}: must be {rule}",
            optimizer=optimizer,
            option=option,
            value=value,
            rule=rule,
        )
        self.optimizer = optimizer
        self.option = option


class RuleChangedError(ContractError):
    """An option of the optimizer changed after the pservers were told."""

    code = "contract.rule_changed"

    def __init__(self, *, table: str, have: str, got: str) -> None:
        super().__init__(
            f"table {table!r}: the pservers run {have}, but the optimizer now says {got}: only "
            "the learning rate may change (a scheduler that cycles momentum or betas can't be "
            "used; in geo mode it can)",
            table=table,
            have=have,
            got=got,
        )


def check_options(optimizer: torch.optim.Optimizer) -> None:
    """Look at the numbers among the options of every parameter group, of any optimizer.

    Raises:
        OptimizerOptionError: on a NaN or an infinity, or a negative where none is meant.
    """
    name = type(optimizer).__name__
    for group in optimizer.param_groups:
        for option, value in group.items():
            if option == "params":
                continue
            for number in value if isinstance(value, tuple | list) else (value,):
                rule = _rule_broken(option, number)
                if rule is not None:
                    raise OptimizerOptionError(
                        optimizer=name, option=option, value=float(number), rule=rule
                    )


def _rule_broken(option: str, number: Any) -> str | None:
    """Return what a number of an option must be, None if it is that, or is no number."""
    if isinstance(number, torch.Tensor) and number.numel() == 1:
        number = number.item()
    if not isinstance(number, int | float) or isinstance(number, bool):
        return None
    if option == "lr" and not 0 <= number <= MAX_LEARNING_RATE:
        return f"from 0 to {MAX_LEARNING_RATE:g}"
    if option == "betas" and not 0 <= number < 1:
        return "at least 0 and less than 1"
    if not math.isfinite(number):
        return "a finite number"
    if option in _NOT_NEGATIVE and number < 0:
        return "0 or more"
    return None


def server_rule(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], *, sparse: bool
) -> OptimizerSpec:
    """Return the rule for one parameter group.

    Args:
        optimizer: ``torch.optim.SGD``, ``Adagrad``, ``Adam`` or ``SparseAdam``.
        group: One of its ``param_groups``.
        sparse: Whether the rule is for rows (SparseAdam's arithmetic) or dense parameters.

    Raises:
        OptimizerNotServedError: on another optimizer, or an option that changes the
            numbers in a way the servers don't know.
    """
    name = type(optimizer).__name__
    for option in _NOT_SERVED:
        if group.get(option):
            remedy = "leave it out, or train in geo mode, where any torch optimizer runs"
            raise OptimizerNotServedError(optimizer=name, option=option, remedy=remedy)
    decay = float(group.get("weight_decay", 0.0))
    if sparse and decay:
        remedy = "put embeddings into a parameter group of their own with weight_decay=0"
        raise OptimizerNotServedError(
            optimizer=name, option=f"weight_decay={decay} on rows", remedy=remedy
        )
    kind = type(optimizer)
    if kind is torch.optim.SGD:
        return _sgd(group, decay=decay)
    if kind is torch.optim.Adagrad:
        return OptimizerSpec(
            rule="adagrad",
            weight_decay=decay,
            lr_decay=float(group["lr_decay"]),
            initial_accumulator_value=float(group["initial_accumulator_value"]),
            eps=float(group["eps"]),
        )
    if kind is torch.optim.Adam or (kind is torch.optim.SparseAdam and sparse):
        beta1, beta2 = group["betas"]
        return OptimizerSpec(
            rule="adam",
            weight_decay=decay,
            beta1=float(beta1),
            beta2=float(beta2),
            eps=float(group["eps"]),
        )
    remedy = "use SGD, Adagrad or Adam, or train in geo mode, where any torch optimizer runs"
    raise OptimizerNotServedError(optimizer=name, option="", remedy=remedy)


def is_served(optimizer: torch.optim.Optimizer, group: dict[str, Any], *, sparse: bool) -> bool:
    """Return whether there is a rule for one parameter group, as ``server_rule`` takes it."""
    try:
        server_rule(optimizer, group, sparse=sparse)
    except OptimizerNotServedError:
        return False
    return True


def _sgd(group: dict[str, Any], *, decay: float) -> OptimizerSpec:
    momentum = float(group["momentum"])
    if not momentum:
        return OptimizerSpec(rule="sgd", weight_decay=decay)
    return OptimizerSpec(
        rule="momentum",
        weight_decay=decay,
        momentum=momentum,
        dampening=float(group["dampening"]),
        nesterov=bool(group["nesterov"]),
    )
