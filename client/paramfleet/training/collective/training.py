"""Collective training of one worker: its model and its optimizer, given in either order."""

from collections.abc import Callable
from typing import Any

import torch

from paramfleet.config.errors import CallOrderError
from paramfleet.config.strategy import CollectiveMode
from paramfleet.telemetry.step_times import StepTimes
from paramfleet.training.collective.errors import CollectiveSetupError
from paramfleet.training.collective.features.dgc import DgcSgd
from paramfleet.training.collective.features.halving import reducing_hook
from paramfleet.training.collective.features.scaling import ScaledOptimizer, in_half
from paramfleet.training.collective.features.sharding import cut_up
from paramfleet.training.collective.gradients import Reduction
from paramfleet.training.collective.model import CollectiveModel
from paramfleet.training.collective.optimizer import CollectiveOptimizer
from paramfleet.training.collective.steppers import stepper_of
from paramfleet.training.collective.with_localsgd import train_apart
from paramfleet.training.collective.world import World

__all__ = ["CollectiveTraining"]


class CollectiveTraining:
    """What ``fleet``'s functions of training do in collective mode.

    Args:
        world: The workers.
        times: Where this worker's time goes.
    """

    def __init__(self, world: World, times: StepTimes) -> None:
        self.world = world
        self._times = times
        self.model: CollectiveModel | None = None
        self.optimizer: CollectiveOptimizer | None = None
        self._running = False

    def take_model(self, module: torch.nn.Module) -> CollectiveModel:
        """Wrap a model, and move it to this worker's device.

        Raises:
            CallOrderError: the second time.
            CollectiveSetupError: if it has tables.
            PeersLostError: if a worker is lost meanwhile.
        """
        if self.model is not None:
            remedy = "a collective job trains one model: put its parts in one torch.nn.Module"
            raise CallOrderError(function="distributed_model", remedy=remedy)
        self.model = CollectiveModel(module.to(self.world.device))
        self._begin()
        return self.model

    def take_optimizer(
        self, inner: torch.optim.Optimizer, mode: CollectiveMode
    ) -> CollectiveOptimizer:
        """Wrap an optimizer, as the strategy says.

        Raises:
            CallOrderError: the second time.
            CollectiveSetupError: if it doesn't go with a feature or with the model.
            PeersLostError: if a worker is lost meanwhile.
        """
        if self.optimizer is not None:
            remedy = "a collective job has one optimizer: give it parameter groups"
            raise CallOrderError(function="distributed_optimizer", remedy=remedy)
        self.optimizer = CollectiveOptimizer(inner, mode, self.world, self._times)
        self._begin()
        return self.optimizer

    def _begin(self) -> None:
        """Let the gradients come together, once both are here."""
        model, optimizer = self.model, self.optimizer
        if model is None or optimizer is None or self._running:
            return
        module, mode = model.module, optimizer.plan
        _check_owned(module, optimizer.inner)
        forward, stepper = _joined(module, optimizer, self.world)
        amp = mode.features.get("amp")
        if amp is not None:
            device, half = self.world.device.type, getattr(torch, amp["dtype"])
            forward = in_half(forward, device=device, dtype=half)
            if half is torch.float16:
                stepper = optimizer.scaler = ScaledOptimizer(stepper, amp, device)
        if mode.apart is not None:
            stepper = optimizer.apart = train_apart(
                stepper, mode, self.world, buffers=module.buffers()
            )
        model.run_through(forward)
        optimizer.step_through(stepper, owned=module.parameters)
        optimizer.watch_losses(lambda: model.first_examples)
        if optimizer.guard is not None:
            optimizer.guard.buffers = module.buffers
            optimizer.guard.keep_buffers()
        self._running = True


def _joined(
    module: torch.nn.Module, optimizer: CollectiveOptimizer, world: World
) -> tuple[Callable[..., Any], torch.optim.Optimizer]:
    """Return what computes forward, so that gradients come together, and what steps."""
    mode, merge, inner = optimizer.plan, optimizer.merge, optimizer.inner
    if "sharding" in mode.features:
        stage = mode.features["sharding"]["stage"]
        return cut_up(module, inner, stage=stage, world=world, merge=merge), inner
    stepper = stepper_of(inner, mode, module)
    if mode.apart is not None:
        return module, stepper
    reduction = Reduction(module, mode, world, merge)
    optimizer.check_gradients = reduction.check
    if isinstance(stepper, DgcSgd):
        reduction.register_comm_hook(None, stepper.hook)
    elif "fp16_allreduce" in mode.features or mode.loss_reduction == "sum":
        narrow = mode.features.get("fp16_allreduce")
        dtype = None if narrow is None else getattr(torch, narrow["dtype"])
        hook = reducing_hook(dtype, sums=mode.loss_reduction == "sum")
        reduction.register_comm_hook(None, hook)
    return reduction, stepper


def _check_owned(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Demand that the optimizer steps the model's parameters.

    Raises:
        CollectiveSetupError: if it has others.
    """
    own = {id(parameter) for parameter in module.parameters()}
    for group in optimizer.param_groups:
        if any(id(parameter) not in own for parameter in group["params"]):
            rule = "not a parameter of the model, so its gradients would not be all-reduced"
            raise CollectiveSetupError(found="a parameter of the optimizer", rule=rule)
