"""From ``hyper_parameters.optimizer`` to torch's optimizer."""

from typing import Any

import torch

from paramfleet.runner.config.errors import ConfigError
from paramfleet.runner.config.settings import OptimizerSettings
from paramfleet.tables.sparse import table_of
from paramfleet.training import optim
from paramfleet_shared.values.texts import nearest, shown

__all__ = ["make_optimizer", "make_scheduler"]


def make_optimizer(net: torch.nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Return an optimizer over all parameters.

    The weight decay is that of the dense parameters alone: a row that no batch touches is
    left alone.

    Raises:
        ConfigError: if neither torch.optim nor fleet.optim has one of that name.
    """
    options: dict[str, Any] = {"lr": settings.learning_rate}
    if settings.name.lower() == "momentum":
        cls: type[torch.optim.Optimizer] = torch.optim.SGD
        options["momentum"] = settings.momentum
    else:
        cls = _class_of(settings.name)
    parameters = list(net.parameters())
    dense = [each for each in parameters if table_of(each) is None]
    rows = [each for each in parameters if table_of(each) is not None]
    groups: list[dict[str, Any]] = []
    if dense:
        groups.append({"params": dense, "weight_decay": settings.reg})
    if rows:
        groups.append({"params": rows, "weight_decay": 0.0})  # AdamW's own isn't 0
    return cls(groups, **options)


def make_scheduler(
    optimizer: torch.optim.Optimizer, settings: OptimizerSettings
) -> torch.optim.lr_scheduler.LRScheduler | None:
    """Return what decays the learning rate, to be stepped after each step; None for nothing."""
    if not settings.decay_steps:
        return None
    return torch.optim.lr_scheduler.StepLR(
        optimizer, settings.decay_steps, gamma=settings.decay_rate
    )


def _class_of(name: str) -> type[torch.optim.Optimizer]:
    known = {
        each.lower(): cls
        for each, cls in (*vars(torch.optim).items(), *vars(optim).items())
        if isinstance(cls, type)
        and issubclass(cls, torch.optim.Optimizer)
        and not each.startswith("_")
    }
    found = known.get(name.lower())
    if found is None:
        near = nearest(name.lower(), [*known, "momentum"])
        rule = "torch.optim has no such class"
        if near:
            rule += f"; did you mean {near}?"
        raise ConfigError(
            where="the configuration",
            key="hyper_parameters.optimizer.class",
            value=shown(name),
            rule=rule,
        )
    return found
