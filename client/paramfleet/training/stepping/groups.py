"""Parameter groups and state dicts of an optimizer that steps through a mode.

Modes hold the dicts of ``param_groups``: what is loaded goes into the same dicts, so that rates
that a script sets afterwards are the mode's.
"""

import inspect
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from paramfleet.tables.combined import GroupAddedError, parts_of
from paramfleet.tables.sparse import table_of
from paramfleet_shared.errors import ContractError

__all__ = [
    "ClosureOptimizerError",
    "OptimizerStateError",
    "check_added",
    "check_closure",
    "check_states",
    "load_in_place",
    "warn_of_states",
]

log = logging.getLogger(__name__)


class ClosureOptimizerError(ContractError):
    """An optimizer computes losses itself, so that no step of it is one gradient."""

    code = "contract.closure_optimizer"
    optimizer: str
    sentence = (
        "{optimizer} computes the loss several times in a step, and a step of paramfleet is "
        "one gradient of each worker: use an optimizer that steps by one gradient, as Adam"
    )


class OptimizerStateError(ContractError):
    """A state dict holds states that the optimizer doesn't keep in this mode."""

    code = "contract.optimizer_state"
    optimizer: str
    holders: str
    sentence = (
        "the state dict has states of {optimizer} that {holders} keep in this mode: save and "
        "load them with fleet.save_persistables() and fleet.load_model(), or set "
        "state_dict['state'] = {{}} to begin with new states"
    )


def check_closure(optimizer: torch.optim.Optimizer) -> None:
    """Check that an optimizer steps without a closure.

    Raises:
        ClosureOptimizerError: if it doesn't, as ``torch.optim.LBFGS``.
    """
    for part in parts_of(optimizer):
        closure = inspect.signature(type(part).step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise ClosureOptimizerError(optimizer=type(part).__name__)


def check_added(groups: Sequence[Mapping[str, Any]], *, is_late: bool) -> None:
    """Check that groups may be added to an optimizer.

    Args:
        groups: The new ones.
        is_late: Whether the tables of the groups are declared already.

    Raises:
        GroupAddedError: if they are, or if a group has rows.
    """
    if is_late:
        rule = (
            "the tables of the groups are declared by now: give the optimizer all parameters "
            "before fleet.init_worker(), with requires_grad_(False) for those to be trained "
            "later"
        )
        raise GroupAddedError(rule=rule)
    for group in groups:
        for parameter in group["params"]:
            table = table_of(parameter)
            if table is not None:
                rule = f"give the rows of {table.name!r} to the optimizer when it is made"
                raise GroupAddedError(rule=rule)


def check_states(
    optimizer: torch.optim.Optimizer, state_dict: Mapping[str, Any], *, all_elsewhere: bool
) -> None:
    """Check that an optimizer can take the states of a state dict.

    Args:
        optimizer: It.
        state_dict: As ``state_dict()`` of it, or of the same optimizer in torch, returned it.
        all_elsewhere: Whether pservers keep all states, and not only those of rows.

    Raises:
        OptimizerStateError: if pservers or tables keep some of them.
    """
    states = state_dict.get("state") or {}
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    named = [
        number for group in state_dict.get("param_groups", ()) for number in group["params"]
    ]
    rows = {
        number
        for number, each in zip(named, parameters, strict=False)
        if table_of(each) is not None
    }
    found = [number for number, state in states.items() if state]
    if found and all_elsewhere:
        holders = "pservers"
    elif not rows.isdisjoint(found):
        holders = "the tables of rows"
    else:
        return
    name = "/".join(type(part).__name__ for part in parts_of(optimizer))
    raise OptimizerStateError(optimizer=name, holders=holders)


def load_in_place(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
    """Load a state dict into an optimizer, whose dicts of groups stay the same objects."""
    groups = optimizer.param_groups
    kept = list(groups)
    optimizer.load_state_dict(state_dict)
    loaded = optimizer.param_groups
    for old, new in zip(kept, loaded, strict=True):
        old.clear()
        old.update(new)
    groups[:] = kept
    _set_groups(optimizer, groups)


def _set_groups(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> None:
    optimizer.param_groups = groups
    start = 0
    for part in parts_of(optimizer):
        if part is not optimizer:
            stop = start + len(part.param_groups)
            part.param_groups = groups[start:stop]
            start = stop


def warn_of_states(optimizer: torch.optim.Optimizer, tables: Collection[str]) -> None:
    """Warn that a state dict lacks the states of tables."""
    facts = {
        "optimizer": type(optimizer).__name__,
        "tables": sorted(tables),
        "reason": "pservers or tables of rows keep these states, and state_dict() lacks them",
        "remedy": "fleet.save_persistables(folder) and fleet.load_model(folder) have all",
    }
    log.warning("worker.optimizer_state_partial", extra=facts)
