"""LAMB: Adam whose steps are scaled layer by layer (You et al., 2019, algorithm 2)."""

from collections.abc import Callable, Collection
from typing import Any

import torch
from typing_extensions import override

__all__ = ["Lamb"]


class Lamb(torch.optim.Optimizer):
    """Steps ``p -= lr |p| / |u| u`` with ``u = m' / (sqrt(v') + eps) + wd p``.

    ``m'`` and ``v'`` are Adam's moments without their bias; the factor is 1 where a norm is 0.

    Args:
        groups: Parameter groups of a ``torch.optim.Adam`` or ``AdamW``; they are shared with
            it, so that a scheduler of either works. ``lr``, ``betas`` and ``eps`` are theirs.
        weight_decay: The decay ``wd``.
        without_decay: These parameters have none.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        weight_decay: float,
        without_decay: Collection[torch.Tensor],
    ) -> None:
        super().__init__(groups, {})
        self._decay = weight_decay
        self._plain = {id(parameter) for parameter in without_decay}

    @override
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # torch's overloads
        """Take one step with the gradients that are there."""
        assert closure is None, "the distributed optimizer calls it"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    update = self._update(parameter, group)
                    norm, update_norm = parameter.norm(), update.norm()
                    trust = norm / update_norm
                    usable = (norm > 0) & (update_norm > 0)
                    trust = torch.where(usable, trust, torch.ones_like(trust))
                    parameter.sub_(update * (group["lr"] * trust))

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        """Return what the parameter moves by before it is scaled."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        step = float(state["step"])
        first, second = group["betas"]
        mean = state["exp_avg"].lerp_(parameter.grad, 1 - first)
        square = state["exp_avg_sq"].mul_(second)
        square.addcmul_(parameter.grad, parameter.grad, value=1 - second)
        divisor = (square / (1 - second**step)).sqrt_().add_(group["eps"])
        update: torch.Tensor = (mean / (1 - first**step)).div_(divisor)
        if id(parameter) not in self._plain:
            update.add_(parameter, alpha=self._decay)
        return update
