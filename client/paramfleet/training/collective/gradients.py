"""How the gradients of a batch come together: torch's DistributedDataParallel."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from paramfleet.config.strategy import CollectiveMode
from paramfleet.training.collective.errors import CollectiveSetupError
from paramfleet.training.collective.features.merging import Merge
from paramfleet.training.collective.world import World

__all__ = ["all_reduced"]


def all_reduced(
    module: torch.nn.Module, mode: CollectiveMode, world: World, merge: Merge
) -> tuple[DistributedDataParallel, Callable[..., Any]]:
    """Wrap a model so that ``backward`` leaves the mean of all workers' gradients.

    Only the last batch of a merged step is all-reduced.

    Args:
        module: On this worker's device; every worker begins with the values of worker 0.
        mode: The strategy.
        world: The workers.
        merge: Says which batch is a step's last.

    Returns:
        The wrapper, for hooks, and what to call in place of ``module``.

    Raises:
        CollectiveSetupError: if batch norm can't be synchronised on this device.
        PeersLostError: if a worker is lost meanwhile.
    """
    if mode.sync_batch_norm:
        if world.device.type != "cuda":
            rule = "torch's SyncBatchNorm runs on GPUs only"
            raise CollectiveSetupError(
                found=f"sync_batch_norm = True on {world.device.type}", rule=rule
            )
        convert = torch.nn.SyncBatchNorm.convert_sync_batchnorm
        module = convert(module)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    with world.together("distributed_model"):
        wrapper = DistributedDataParallel(
            module,
            device_ids=[world.device.index] if world.device.type == "cuda" else None,
            bucket_cap_mb=mode.fuse_grad_size_in_MB,
            find_unused_parameters=mode.find_unused_parameters,
        )

    def forward(*args: Any, **kwargs: Any) -> Any:
        if merge.is_last or not torch.is_grad_enabled():
            with world.together("a forward pass"):  # it sends buffers
                return wrapper(*args, **kwargs)
        with wrapper.no_sync():
            return wrapper(*args, **kwargs)

    return wrapper, forward
