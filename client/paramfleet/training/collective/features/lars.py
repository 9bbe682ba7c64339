"""LARS: momentum SGD whose rate is scaled layer by layer (You et al., 2017, algorithm 1)."""

from collections.abc import Callable, Collection
from typing import Any

import torch
from typing_extensions import override

__all__ = ["Lars"]


class Lars(torch.optim.Optimizer):
    """Steps ``v = m v + rate (g + wd p); p -= v`` for each parameter.

    ``rate = lr coeff |p| / (|g| + wd |p| + epsilon)``, or ``lr`` where a norm is 0. Parameters
    without decay, usually biases and those of norms, take plain momentum steps with ``lr``,
    as in Fleet.

    Args:
        groups: Parameter groups of a ``torch.optim.SGD``; they are shared with it, so that a
            scheduler of either works. ``lr`` and ``momentum`` are theirs.
        coeff: The trust coefficient.
        weight_decay: The decay ``wd``.
        epsilon: Added to the divisor.
        without_decay: These parameters have none.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        coeff: float,
        weight_decay: float,
        epsilon: float,
        without_decay: Collection[torch.Tensor],
    ) -> None:
        super().__init__(groups, {})
        self._coeff = coeff
        self._decay = weight_decay
        self._epsilon = epsilon
        self._plain = {id(parameter) for parameter in without_decay}

    @override
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # torch's overloads
        """Take one step with the gradients that are there."""
        assert closure is None, "the distributed optimizer calls it"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                velocity = state["momentum_buffer"].mul_(group["momentum"])
                gradient = parameter.grad
                if id(parameter) in self._plain:
                    velocity.add_(gradient, alpha=group["lr"])
                else:
                    gradient = gradient.add(parameter, alpha=self._decay)
                    velocity.add_(gradient * (group["lr"] * self._trust(parameter)))
                parameter.sub_(velocity)

    def _trust(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return the layer's factor, a scalar on its device, without waiting for it."""
        assert parameter.grad is not None
        norm, grad_norm = parameter.norm(), parameter.grad.norm()
        divisor = grad_norm + self._decay * norm + self._epsilon
        trust = self._coeff * norm / divisor
        return torch.where((norm > 0) & (grad_norm > 0), trust, torch.ones_like(trust))
