"""Several optimizers as one, each with parameters of its own."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from typing_extensions import override

from paramfleet.tables.sparse import table_of
from paramfleet_shared.errors import ContractError

__all__ = ["Combined", "CombinedError", "GroupAddedError", "loss_of", "part_of", "parts_of"]


class CombinedError(ContractError):
    """What was to be combined aren't optimizers, each with parameters of its own."""

    code = "contract.combined"
    problem: str
    sentence = (
        "fleet.optim.Combined(): {problem}: give it a list of torch optimizers, each with "
        "parameters of its own"
    )


class GroupAddedError(ContractError):
    """An optimizer got a parameter group that it can't train any more."""

    code = "contract.group_added"
    rule: str
    sentence = "add_param_group(): {rule}"


_GROUP_ADDED = "add the group to one of the optimizers, and combine them afterwards"


class Combined(torch.optim.Optimizer):
    """One optimizer that steps several others; groups and states are theirs.

    For example, a wide part may have FTRL and a deep part Adagrad:

        fleet.optim.Combined([fleet.optim.FTRL(wide), torch.optim.Adagrad(deep)])

    Args:
        optimizers: One or more, without common parameters.

    Raises:
        CombinedError: if the list is empty, an element is not an optimizer, or two optimizers
            have the same parameter.
    """

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self.parts = tuple(part for each in _checked(optimizers) for part in parts_of(each))
        self._is_made = False
        super().__init__([group for part in self.parts for group in part.param_groups], {})
        self._is_made = True
        for part in self.parts:
            self.state.update(part.state)
        self._share()

    @override
    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy consists of."""
        return {**super().__getstate__(), "parts": self.parts}

    @override
    def __setstate__(self, state: dict[str, Any]) -> None:
        """Be a copy: of its optimizers, too."""
        super().__setstate__(state)
        self._is_made = True
        self._share()

    @override
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: a group belongs to one of the optimizers.

        Raises:
            GroupAddedError: always, once it is made.
        """
        if self._is_made:
            raise GroupAddedError(rule=_GROUP_ADDED)
        super().add_param_group(param_group)

    @override
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step.

        Args:
            closure: Computes the loss and the gradients again, if given.

        Returns:
            What ``closure`` returned; None without one.

        Raises:
            GroupAddedError: if one of the optimizers got a group after it was combined.
        """
        if sum(len(part.param_groups) for part in self.parts) != len(self.param_groups):
            raise GroupAddedError(rule=_GROUP_ADDED)
        loss = loss_of(closure)
        for part in self.parts:
            part.step()
        return loss

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take groups and states as ``state_dict`` returned them."""
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        """Let the optimizers have this one's groups and states, as it has theirs."""
        start = 0
        for part in self.parts:
            stop = start + len(part.param_groups)
            part.param_groups = self.param_groups[start:stop]
            part.state = self.state
            start = stop


def _checked(given: Any) -> list[torch.optim.Optimizer]:
    """Return optimizers as a list.

    Raises:
        CombinedError: as ``Combined``.
    """
    if not isinstance(given, Iterable):
        raise CombinedError(problem=f"got {type(given).__name__}")
    optimizers = list(given)
    if not optimizers:
        raise CombinedError(problem="got no optimizer")
    owners: dict[torch.Tensor, str] = {}
    for number, each in enumerate(optimizers):
        kind = type(each).__name__
        if not isinstance(each, torch.optim.Optimizer):
            raise CombinedError(problem=f"number {number} is {kind}")
        name = f"{number} ({kind})"
        for parameter in (p for group in each.param_groups for p in group["params"]):
            owner = owners.setdefault(parameter, name)
            if owner != name:
                problem = f"numbers {owner} and {name} both train {_named(parameter)}"
                raise CombinedError(problem=problem)
    return optimizers


def _named(parameter: torch.Tensor) -> str:
    table = table_of(parameter)
    if table is not None:
        return f"table {table.name!r}"
    return f"a parameter of shape {list(parameter.shape)}"


def loss_of(closure: Callable[[], Any] | None) -> Any:
    """Return what the closure of a step computes, with gradients; None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def parts_of(optimizer: torch.optim.Optimizer) -> tuple[torch.optim.Optimizer, ...]:
    """Return the optimizers that a combined one consists of; any other is its own."""
    return optimizer.parts if isinstance(optimizer, Combined) else (optimizer,)


def part_of(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> torch.optim.Optimizer:
    """Return which of its optimizers a group of parameters belongs to."""
    for part in parts_of(optimizer)[1:]:
        if any(each["params"] is group["params"] for each in part.param_groups):
            return part
    return parts_of(optimizer)[0]
