"""Several optimizers as one, each with parameters of its own."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from typing_extensions import override

__all__ = ["Combined", "loss_of", "part_of", "parts_of"]


class Combined(torch.optim.Optimizer):
    """Steps its optimizers one after the other; groups and states are theirs.

    A wide part may have FTRL, and a deep part Adagrad:

        fleet.optim.Combined([fleet.optim.FTRL(wide), torch.optim.Adagrad(deep)])

    Args:
        optimizers: At least one; none has a parameter of another.

    Raises:
        ValueError: if there is none, or two have the same parameter.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = tuple(part for each in optimizers for part in parts_of(each))
        self._is_made = False
        super().__init__([group for part in self.parts for group in part.param_groups], {})
        self._is_made = True
        for part in self.parts:
            self.state.update(part.state)
        self._share()

    @override
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: a group belongs to one of the optimizers.

        Raises:
            TypeError: always, once it is made.
        """
        if self._is_made:
            message = "add the group to one of the optimizers, and combine them afterwards"
            raise TypeError(message)
        super().add_param_group(param_group)

    @override
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step.

        Args:
            closure: Computes the loss and the gradients anew, if given.

        Returns:
            What ``closure`` returned; None without one.
        """
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
