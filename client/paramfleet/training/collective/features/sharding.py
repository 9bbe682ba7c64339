"""Parameters, gradients and optimizer state cut up among the workers: torch's fully_shard."""

from collections.abc import Callable
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from paramfleet.training.collective.errors import CollectiveSetupError
from paramfleet.training.collective.features.merging import Merge
from paramfleet.training.collective.world import World

__all__ = ["cut_up"]


def cut_up(
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    stage: int,
    world: World,
    merge: Merge,
) -> Callable[..., Any]:
    """Cut a model up, and give the optimizer its parts; each worker begins as worker 0.

    The members of every ``ModuleList`` are gathered and freed one by one, the rest together.

    Args:
        module: Changed in place: its parameters become DTensors.
        optimizer: Gets them in place of the whole ones. It must not have stepped yet.
        stage: 2 keeps the parameters whole between forward and backward; 3 doesn't.
        world: The workers.
        merge: Says which batch is a step's last, after which gradients travel.

    Returns:
        What to call in place of ``module``.

    Raises:
        CollectiveSetupError: if the optimizer has state of whole parameters.
        PeersLostError: if a worker is lost meanwhile.
    """
    if optimizer.state:
        rule = "has state of whole parameters: cut the model up before its first step"
        raise CollectiveSetupError(found="sharding = True and an optimizer that", rule=rule)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    with world.together("sharding the model"):
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                distributed.broadcast(tensor.data, src=0)
        mesh = init_device_mesh(world.device.type, (world.size,))
        blocks = [
            block
            for found in module.modules()
            if isinstance(found, torch.nn.ModuleList)
            for block in found
        ]
        for part in (*blocks, module):
            fully_shard(part, mesh=mesh, reshard_after_forward=stage == 3)
    parts = dict(module.named_parameters())
    for group in optimizer.param_groups:
        group["params"] = [parts[names[id(whole)]] for whole in group["params"]]

    def forward(*args: Any, **kwargs: Any) -> Any:
        assert isinstance(module, FSDPModule), "fully_shard made it one"
        module.set_requires_gradient_sync(merge.is_last)
        return module(*args, **kwargs)

    return forward
