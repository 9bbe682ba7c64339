"""The door to ``paramfleet.localsgd``: workers that train apart and meet now and then."""

import torch

from paramfleet.collective.world import World
from paramfleet.strategy import CollectiveMode, StrategyError

__all__ = ["train_apart"]


def train_apart(
    inner: torch.optim.Optimizer, mode: CollectiveMode, world: World
) -> torch.optim.Optimizer:
    """Return the optimizer that steps ``inner`` and meets the other workers.

    Args:
        inner: Steps this worker's parameters with its own gradients; shares its groups.
        mode: ``mode.features[mode.apart]`` has the family member's keys.
        world: The workers; the process group of torch.distributed is the default one.

    Raises:
        StrategyError: always, for now.
    """
    optimizer = type(inner).__name__
    rule = f"not available yet for {optimizer} and {world.size} workers"
    raise StrategyError(key=mode.apart or "", value="True", rule=rule)
