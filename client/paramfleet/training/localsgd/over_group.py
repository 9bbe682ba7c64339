"""LocalSGD among the workers of the default ``torch.distributed`` group."""

from collections.abc import Iterable

import torch

from paramfleet.training.localsgd.core.ledger import Ledger
from paramfleet.training.localsgd.core.settings import LocalSgdSettings
from paramfleet.training.localsgd.group_synchronizer import (
    GroupSynchronizer,
    GroupSynchronizerSettings,
)
from paramfleet.training.localsgd.layout import Layout, trained_parameters
from paramfleet.training.localsgd.optimizer import LocalSgdOptimizer

__all__ = ["localsgd_over_group"]


def localsgd_over_group(
    inner: torch.optim.Optimizer,
    settings: LocalSgdSettings,
    *,
    buffers: Iterable[torch.Tensor] = (),
    group_settings: GroupSynchronizerSettings | None = None,
) -> LocalSgdOptimizer:
    """Return an optimizer that synchronizes by all-reduce; all workers call it together.

    Everybody begins with rank 0's parameters and buffers.

    Args:
        inner: The torch optimizer over the model's parameters.
        settings: The same on all workers.
        buffers: ``model.buffers()``; those of floats, such as BatchNorm's running statistics,
            get the workers' mean once a period.
        group_settings: Deadline and buckets.

    Raises:
        LocalSgdSettingsError: if there are fewer parameters than fragments.
        SynchronizationLostError: if a worker didn't come in time.
    """
    parameters = trained_parameters(inner)
    layout = Layout(parameters, settings.fragments)
    ledger = Ledger(settings.fragments)
    synchronizer = GroupSynchronizer(
        layout.sizes,
        settings,
        ledger=ledger,
        device=layout.device,
        group_settings=group_settings,
    )
    kept = list(buffers)
    synchronizer.align([*parameters, *kept])
    return LocalSgdOptimizer(inner, settings, synchronizer, ledger=ledger, buffers=kept)
