"""How a collective job trains by LocalSGD: apart, synchronizing now and then."""

from collections.abc import Iterable

import torch

from paramfleet.config.strategy import CollectiveMode
from paramfleet.training.collective.world import World
from paramfleet.training.localsgd.core.choices import settings_of
from paramfleet.training.localsgd.group_synchronizer import GroupSynchronizerSettings
from paramfleet.training.localsgd.optimizer import LocalSgdOptimizer
from paramfleet.training.localsgd.over_group import localsgd_over_group

__all__ = ["train_apart"]


def train_apart(
    inner: torch.optim.Optimizer,
    mode: CollectiveMode,
    world: World,
    *,
    buffers: Iterable[torch.Tensor],
) -> LocalSgdOptimizer:
    """Return the optimizer that steps ``inner`` and synchronizes with the other workers.

    Args:
        inner: Steps this worker's parameters with its own gradients; shares its groups. A
            step that it skips, as with amp in float16, counts like any other.
        mode: ``mode.features[mode.apart]`` has the family member's keys.
        world: The workers; the process group of torch.distributed is the default one.
        buffers: The model's; those of floats get the workers' mean once a period.

    Raises:
        LocalSgdSettingsError: if two keys don't go together.
        SynchronizationLostError: if a worker didn't come in time.
    """
    assert mode.apart is not None
    settings = settings_of(mode.apart, mode.features[mode.apart])
    return localsgd_over_group(
        inner,
        settings,
        buffers=buffers,
        group_settings=GroupSynchronizerSettings(timeout_s=world.timeout_s),
    )
