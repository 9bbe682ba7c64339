"""From a torch optimizer to the rule that the pservers run.

The rules are numerically those of ``torch.optim``; which there are, and what each takes of
an optimizer's options, their records say (``paramfleet_shared.tables.rules``). The learning
rate isn't part of a rule: it travels with every push, so that torch's schedulers work
unchanged.
"""

import pkgutil
import sys
from collections.abc import Mapping
from functools import cache
from numbers import Real
from typing import Any

import torch
from typing_extensions import override

from paramfleet.tables.combined import part_of, parts_of
from paramfleet.tables.sparse import SparseTable
from paramfleet_shared.errors import ContractError
from paramfleet_shared.tables.rules.catalog import RULES
from paramfleet_shared.tables.rules.record import Pace, Rule, TorchForm
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec
from paramfleet_shared.values.bounds import MAX_LEARNING_RATE
from paramfleet_shared.values.texts import shown

__all__ = [
    "OptimizerNotServedError",
    "OptimizerOptionError",
    "RuleChangedError",
    "check_numbers",
    "check_options",
    "check_ranges",
    "is_served",
    "keeps_states",
    "moves_idle_rows",
    "needs_kernels",
    "numbers_changed",
    "pace_of",
    "refused_here",
    "remedy_for",
    "rule_of_rows",
    "server_rule",
]

_NOT_SERVED = ("amsgrad", "maximize", "differentiable", "decoupled_weight_decay")
"""Options of torch's optimizers that change the numbers and that servers don't have."""


_OR_GEO = ", or train in geo mode, where any torch optimizer runs"

_NOT_NEGATIVE = frozenset(
    {"weight_decay", "eps", "momentum", "lr_decay", "initial_accumulator_value"}
)
"""Options whose negatives are mistakes in every optimizer that has them."""


_FINITE = "a finite number"


class OptimizerNotServedError(ContractError):
    """The pservers can't run this optimizer, or one of its options."""

    code = "contract.optimizer_not_served"
    optimizer: str
    option: str
    remedy: str

    @override
    def describe(self) -> str:
        with_option = f" with {self.option}" if self.option else ""
        return f"pservers don't run {self.optimizer}{with_option}: {self.remedy}"


class OptimizerOptionError(ContractError):
    """An option of the optimizer is a number that no training can use, or is none."""

    code = "contract.optimizer_option"
    optimizer: str
    option: str
    value: float | str
    """Of what isn't a float, what ``repr`` returns."""
    rule: str
    sentence = "{optimizer} with {option} = {value}: must be {rule}"


class RuleChangedError(ContractError):
    """An option of the optimizer became one of another rule than the pservers run."""

    code = "contract.rule_changed"
    table: str
    have: str
    got: str
    sentence = (
        "table {table!r}: the pservers run {have}, but the optimizer now says {got}: numbers "
        "of a rule may change from step to step, but not which rule it is, because another "
        "one has other states: begin with the option that the schedule has later (momentum "
        "1e-9 in place of 0), or train in geo mode"
    )


def check_options(optimizer: torch.optim.Optimizer) -> None:
    """Look at the numbers among the options of every parameter group, of any optimizer.

    Raises:
        OptimizerOptionError: on a NaN or an infinity, or a negative where none is meant.
    """
    for group in optimizer.param_groups:
        name = type(part_of(optimizer, group)).__name__
        for option, value in group.items():
            if option == "params":
                continue
            for number in value if isinstance(value, tuple | list) else (value,):
                rule = _rule_broken(option, number)
                if rule is not None:
                    raise OptimizerOptionError(
                        optimizer=name, option=option, value=_fact(number), rule=rule
                    )


def check_numbers(optimizer: str, options: Mapping[str, Any]) -> None:
    """Pass if options of an optimizer are numbers, or tensors of one.

    Raises:
        OptimizerOptionError: on anything else, or an integer that no float can hold.
    """
    for option, value in options.items():
        number = _number(value)
        is_number = isinstance(number, Real) and not isinstance(number, bool)
        if not is_number or (isinstance(number, int) and abs(number) > sys.float_info.max):
            raise OptimizerOptionError(
                optimizer=optimizer, option=option, value=_fact(value), rule=_FINITE
            )


def check_ranges(optimizer: str, options: Mapping[str, Any], rule: Rule) -> None:
    """Pass if numbers of an optimizer are within the ranges of its rule.

    Raises:
        OptimizerOptionError: naming the first that isn't.
    """
    constants = {each.name: each for each in rule.constants}
    for option, value in options.items():
        number, broken = _number(value), _rule_broken(option, value)
        constant = constants.get(option)
        if constant is not None and not constant.least <= number <= constant.most:
            broken = f"from {constant.least:g} to {constant.most:g}"
        if broken is not None:
            raise OptimizerOptionError(
                optimizer=optimizer, option=option, value=_fact(value), rule=broken
            )


def _number(value: Any) -> Any:
    is_one = isinstance(value, torch.Tensor) and value.numel() == 1
    return value.item() if is_one else value


def _fact(value: Any) -> float | str:
    number = _number(value)
    return number if isinstance(number, float) else shown(number)


def _rule_broken(option: str, number: Any) -> str | None:
    """Return what a number of an option must be, None if it is that, or is no number."""
    number = _number(number)
    if not isinstance(number, int | float) or isinstance(number, bool):
        return None
    if option == "lr" and not 0 <= number <= MAX_LEARNING_RATE:
        return f"from 0 to {MAX_LEARNING_RATE:g}"
    if option == "betas" and not 0 <= number < 1:
        return "at least 0 and less than 1"
    if not abs(number) <= sys.float_info.max:  # isfinite raises on large integers
        return _FINITE
    if option in _NOT_NEGATIVE and number < 0:
        return "0 or more"
    return None


def server_rule(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], *, sparse: bool
) -> OptimizerSpec:
    """Return the rule for one parameter group.

    Args:
        optimizer: One that a rule's record names (``tables.rules``).
        group: One of its ``param_groups``.
        sparse: Whether the rule is for rows (SparseAdam's arithmetic) or dense parameters.

    Raises:
        OptimizerNotServedError: on another optimizer, or an option that changes the
            numbers in a way the servers don't know.
    """
    kind = type(part_of(optimizer, group))
    name, known = kind.__name__, _rules_of(kind)
    allowed = frozenset[str]().union(*(form.allows for _, form, _ in known))
    for option in _NOT_SERVED:
        if group.get(option) and option not in allowed:
            remedy = f"leave it out{_OR_GEO}"
            raise OptimizerNotServedError(optimizer=name, option=option, remedy=remedy)
    options = {"weight_decay": 0.0, **group}
    for rule, form, rows_only in known:
        constants = form.constants(options) if sparse or not rows_only else None
        if constants is not None:
            return OptimizerSpec(rule=rule.name, **constants)
    remedy = f"use {_offered()}{_OR_GEO}"
    raise OptimizerNotServedError(optimizer=name, option="", remedy=remedy)


def numbers_changed(now: TableSpec, declared: TableSpec) -> dict[str, float | bool | str]:
    """Return the numbers of a table's rule that aren't the declared ones.

    First values of states aren't among them: torch reads them when it makes an optimizer.
    """
    record, were = now.optimizer.record, declared.optimizer.constants
    return {
        name: number
        for name, number in now.optimizer.constants.items()
        if number != were[name] and name != record.first_state
    }


def rule_of_rows(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], table: SparseTable
) -> OptimizerSpec:
    """Return the rule of a table's rows: its accessor's, else that of its parameter group.

    Raises:
        OptimizerNotServedError: as ``server_rule``.
    """
    if table.accessor is not None:
        if group.get("maximize"):
            name = type(part_of(optimizer, group)).__name__
            remedy = f"leave it out: table {table.name!r} has an accessor"
            raise OptimizerNotServedError(optimizer=name, option="maximize", remedy=remedy)
        return table.accessor.rule
    rule = server_rule(optimizer, group, sparse=True)
    tracks, half_life = table.kept_as.tracks, table.kept_as.half_life
    if tracks == "none":
        return rule
    return OptimizerSpec(rule=rule.rule, tracks=tracks, half_life=half_life, **rule.constants)


def is_served(optimizer: torch.optim.Optimizer, group: dict[str, Any], *, sparse: bool) -> bool:
    """Return whether there is a rule for one parameter group, as ``server_rule`` takes it."""
    return remedy_for(optimizer, group, sparse=sparse) is None


def keeps_states(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
    """Return whether an optimizer keeps states of a group's values; unknown ones may."""
    part = part_of(optimizer, group)
    return not isinstance(part, torch.optim.SGD) or bool(group["momentum"])


def moves_idle_rows(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
    """Return whether torch's optimizer moves rows that have no gradient in a step.

    No mode does: rows step as by ``torch.optim.SparseAdam``.
    """
    part = part_of(optimizer, group)
    if any(rows_only for _, _, rows_only in _rules_of(type(part))):
        return False
    if isinstance(part, torch.optim.SGD | torch.optim.Adagrad):
        return bool(group.get("momentum") or group["weight_decay"])
    return not type(part).__module__.startswith("paramfleet.")


def remedy_for(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], *, sparse: bool
) -> str | None:
    """Return what to do so that there is a rule for one parameter group; None if there is."""
    try:
        server_rule(optimizer, group, sparse=sparse)
    except OptimizerNotServedError as error:
        return error.remedy.removesuffix(_OR_GEO)
    return None


def pace_of(optimizer: torch.optim.Optimizer) -> Pace:
    """Return how long an optimizer's steps are, of which its class or a base has a rule.

    Of a combined one it is known if all are alike.
    """
    paces = {_pace_of(type(part)) for part in parts_of(optimizer)}
    return paces.pop() if len(paces) == 1 else "none"


def _pace_of(kind: type) -> Pace:
    for cls in kind.__mro__:
        for rule, _form, _rows_only in _rules_of(cls):
            return rule.pace
    return "none"


def refused_here(error: OptimizerNotServedError) -> OptimizerNotServedError:
    """Return the refusal of an optimizer in GEO or in one process, where ``needs_kernels``."""
    remedy = (
        f"{error.remedy.removesuffix(_OR_GEO)}; in GEO and in one process, the other "
        "optimizers of torch step rows with all of their options"
    )
    return OptimizerNotServedError(
        optimizer=error.optimizer, option=error.option, remedy=remedy
    )


def needs_kernels(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer's rows are stepped by kernels or not at all."""
    return any(form.kernels_only for _, form, _ in _rules_of(type(optimizer)))


@cache
def _by_class() -> dict[type, list[tuple[Rule, TorchForm, bool]]]:
    """Return each optimizer's rules, and whether they are for rows alone."""
    found: dict[type, list[tuple[Rule, TorchForm, bool]]] = {}
    for rule in RULES.values():
        form = rule.torch
        if form is None:
            continue
        for name in form.classes + form.rows_only:
            cls = pkgutil.resolve_name(name)
            entry = (rule, form, name in form.rows_only)
            found.setdefault(cls, []).append(entry)
    return found


def _rules_of(cls: type) -> list[tuple[Rule, TorchForm, bool]]:
    return _by_class().get(cls, [])


def _offered() -> str:
    """Return the names of the optimizers that pservers run: "A, B or C"."""
    forms = [rule.torch for rule in RULES.values() if rule.torch is not None]
    names = [name.removeprefix("torch.optim.") for form in forms for name in form.classes]
    *most, last = dict.fromkeys(names)
    return f"{', '.join(most)} or {last}"
