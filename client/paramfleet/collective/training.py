"""Collective training of one worker: model and optimizer meet here, in either order."""

import torch

from paramfleet.call_order import CallOrderError
from paramfleet.collective.apart import train_apart
from paramfleet.collective.errors import CollectiveSetupError
from paramfleet.collective.gradients import all_reduced
from paramfleet.collective.model import CollectiveModel
from paramfleet.collective.optimizer import CollectiveOptimizer
from paramfleet.collective.world import World
from paramfleet.strategy import CollectiveMode, StrategyError

__all__ = ["CollectiveTraining"]

_NOT_YET = ("amp", "lars", "lamb", "dgc", "fp16_allreduce", "sharding")


class CollectiveTraining:
    """What ``fleet``'s functions of training do in collective mode.

    Args:
        world: The workers.
    """

    def __init__(self, world: World) -> None:
        self.world = world
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
            StrategyError: if a feature can't run here.
            PeersLostError: if a worker is lost meanwhile.
        """
        if self.optimizer is not None:
            remedy = "a collective job has one optimizer: give it parameter groups"
            raise CallOrderError(function="distributed_optimizer", remedy=remedy)
        for flag in _NOT_YET:
            if flag in mode.features:
                raise StrategyError(key=flag, value="True", rule="not available yet")
        self.optimizer = CollectiveOptimizer(inner, mode, self.world)
        self._begin()
        return self.optimizer

    def finish(self) -> None:
        """Let workers that train apart agree, at the end of their training.

        Raises:
            MeetingLostError: if a worker didn't come in time.
        """
        if self._running and self.optimizer is not None:
            self.optimizer.finish()

    def _begin(self) -> None:
        """Let the gradients come together, once both are here."""
        model, optimizer = self.model, self.optimizer
        if model is None or optimizer is None or self._running:
            return
        _check_owned(model.module, optimizer.inner)
        mode = optimizer.mode
        if mode.apart is not None:
            model.run_through(model.module)
            apart = train_apart(
                optimizer.inner, mode, self.world, buffers=model.module.buffers()
            )
            optimizer.step_through(apart)
        else:
            _, forward = all_reduced(model.module, mode, self.world, optimizer.merge)
            model.run_through(forward)
            optimizer.step_through(optimizer.inner)
        self._running = True


def _check_owned(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Demand that the optimizer steps the model's parameters.

    Raises:
        CollectiveSetupError: if it has others.
    """
    own = {id(parameter) for parameter in module.parameters()}
    for group in optimizer.param_groups:
        if any(id(parameter) not in own for parameter in group["params"]):
            rule = "not the model's, so no worker would hear of its gradients"
            raise CollectiveSetupError(found="a parameter of the optimizer", rule=rule)
