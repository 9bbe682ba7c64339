"""How a collective job trains by ``paramfleet.localsgd``: apart, synchronizing now and then."""

from collections.abc import Iterable

import torch

from paramfleet.collective.world import World
from paramfleet.localsgd.core.choices import settings_of
from paramfleet.localsgd.group_synchronizer import GroupSynchronizerSettings
from paramfleet.localsgd.optimizer import LocalSgdOptimizer
from paramfleet.localsgd.over_group import localsgd_over_group
from paramfleet.strategy import CollectiveMode

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
