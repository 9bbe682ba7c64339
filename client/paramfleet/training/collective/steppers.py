"""Which optimizer steps: the user's own, or the one that a feature puts in its place."""

from collections.abc import Sequence
from typing import Any

import torch

from paramfleet.config.strategy import CollectiveMode
from paramfleet.training.collective.errors import CollectiveSetupError
from paramfleet.training.collective.features.dgc import DgcSgd
from paramfleet.training.collective.features.lamb import Lamb
from paramfleet.training.collective.features.lars import Lars

__all__ = ["stepper_of"]

_PLAIN = ("nesterov", "dampening", "amsgrad", "maximize")
"""Options of torch's optimizers that the formulas of the papers don't have."""


def stepper_of(
    inner: torch.optim.Optimizer, mode: CollectiveMode, module: torch.nn.Module
) -> torch.optim.Optimizer:
    """Return what steps, sharing the user's parameter groups.

    Args:
        inner: The user's optimizer.
        mode: The strategy.
        module: The model, whose names of parameters the features know.

    Raises:
        CollectiveSetupError: if the feature isn't for this optimizer; it names both.
    """
    if "lars" in mode.features:
        lars = mode.features["lars"]
        decay = lars["lars_weight_decay"]
        _check(inner, "lars", (torch.optim.SGD,), decays=(0, decay))
        return Lars(
            inner.param_groups,
            coeff=lars["lars_coeff"],
            weight_decay=decay,
            epsilon=lars["epsilon"],
            without_decay=_named(module, lars["exclude_from_weight_decay"]),
        )
    if "lamb" in mode.features:
        lamb = mode.features["lamb"]
        decay = lamb["lamb_weight_decay"]
        _check(inner, "lamb", (torch.optim.Adam, torch.optim.AdamW), decays=(0, decay))
        return Lamb(
            inner.param_groups,
            weight_decay=decay,
            without_decay=_named(module, lamb["exclude_from_weight_decay"]),
        )
    if "dgc" in mode.features:
        _check(inner, "dgc", (torch.optim.SGD,), decays=None)
        if any(not group["momentum"] for group in inner.param_groups):
            rule = "DGC corrects the momentum: give SGD one"
            raise CollectiveSetupError(found="dgc = True and SGD(momentum=0)", rule=rule)
        return DgcSgd(inner.param_groups, mode.features["dgc"])
    return inner


def _check(
    inner: torch.optim.Optimizer,
    flag: str,
    kinds: tuple[type[torch.optim.Optimizer], ...],
    *,
    decays: tuple[float, ...] | None,
) -> None:
    """Demand an optimizer that the feature can take the place of.

    Raises:
        CollectiveSetupError: naming the feature and what it doesn't go with.
    """
    name = type(inner).__name__
    if type(inner) not in kinds:
        wanted = " or ".join(kind.__name__ for kind in kinds)
        rule = f"it takes the place of torch.optim.{wanted}"
        raise CollectiveSetupError(found=f"{flag} = True and {name}", rule=rule)
    for group in inner.param_groups:
        for option in _PLAIN:
            if group.get(option):
                found = f"{flag} = True and {name}({option}={group[option]!r})"
                raise CollectiveSetupError(found=found, rule="its formula has no such thing")
        decay: Any = group["weight_decay"]
        if decays is not None and decay not in decays:
            rule = f"say the decay in {flag}_configs, and leave it out here"
            found = f"{flag} = True and {name}(weight_decay={decay})"
            raise CollectiveSetupError(found=found, rule=rule)
    if inner.state:
        rule = "its state has no place there: begin with a new one"
        raise CollectiveSetupError(found=f"{flag} = True and a used {name}", rule=rule)


def _named(module: torch.nn.Module, parts: Sequence[str]) -> list[torch.Tensor]:
    """Return the parameters whose names hold one of these parts."""
    return [
        parameter
        for name, parameter in module.named_parameters()
        if any(part in name for part in parts)
    ]
