"""The optimizer of a collective job: torch's own, behind what the strategy adds.

It is a ``torch.optim.Optimizer`` over the same parameter groups, so that learning-rate
schedulers and ``clip_grad_norm_`` work on it.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import distributed
from typing_extensions import override

from paramfleet.config.errors import CallOrderError
from paramfleet.config.strategy import TrainingMode
from paramfleet.tables.combined import GroupAddedError
from paramfleet.training.collective.errors import WrongModeError
from paramfleet.training.collective.features.merging import Merge
from paramfleet.training.modes.base import ModelTables
from paramfleet.training.optimizer import DistributedOptimizer, TrainingFinishedError
from paramfleet.training.stepping.guarding import Guarding
from paramfleet.training.stepping.reductions import ReductionWatch

if TYPE_CHECKING:
    from paramfleet.config.strategy import CollectiveMode
    from paramfleet.telemetry.step_times import StepTimes
    from paramfleet.training.collective.features.scaling import ScaledOptimizer
    from paramfleet.training.collective.world import World
    from paramfleet.training.localsgd.core.ledger import Ledger
    from paramfleet.training.localsgd.optimizer import LocalSgdOptimizer

__all__ = ["CollectiveOptimizer"]


class CollectiveOptimizer(DistributedOptimizer):
    """Made by ``fleet.distributed_optimizer`` in collective mode.

    What servers have to do with raises ``WrongModeError``.

    Args:
        inner: The user's optimizer.
        plan: The strategy.
        world: The workers.
        times: Where this worker's time goes.
    """

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        plan: "CollectiveMode",
        world: "World",
        times: "StepTimes",
    ) -> None:
        super().__init__(inner, TrainingMode(name="collective"), lambda: 0, times)
        self.tables = ModelTables(sparse=(), dense=())  # and sharding lets parameters go
        self.plan = plan
        merging = plan.features.get("gradient_merge", {})
        self.merge = Merge(merging.get("k_steps", 1))
        self._avg = merging.get("avg", True)
        self._world = world
        self.guard = None if plan.guard is None else Guarding(plan.guard, self._any_outside)
        self._stepper: torch.optim.Optimizer | None = None
        self._watch: ReductionWatch | None = None
        self._owned: Callable[[], Iterable[torch.Tensor]] = tuple
        self.check_gradients: Callable[[], None] = lambda: None
        """Raises if the gradients of the last batch aren't those of all workers."""
        self.scaler: ScaledOptimizer | None = None
        """Scales the loss, with amp in float16."""
        self.apart: LocalSgdOptimizer | None = None
        """Synchronizes with the other workers, where they train apart."""

    @property
    @override
    def running(self) -> NoReturn:
        remedy = "the workers all-reduce their gradients, and no mode of pservers runs"
        raise WrongModeError(function="distributed_optimizer", remedy=remedy)

    def step_through(
        self, stepper: torch.optim.Optimizer, *, owned: Callable[[], Iterable[torch.Tensor]]
    ) -> None:
        """Step through ``stepper``, which shares the parameter groups, from now on.

        Args:
            stepper: The user's optimizer, or what a feature has put in its place.
            owned: Returns the model's parameters, whose gradients are all-reduced.
        """
        self._stepper = stepper
        self._owned = owned

    @property
    def stepper(self) -> torch.optim.Optimizer:
        """What steps.

        Raises:
            CallOrderError: before ``fleet.distributed_model``.
        """
        if self._stepper is None:
            remedy = "give the model to fleet.distributed_model() before training"
            raise CallOrderError(function="distributed_optimizer", remedy=remedy)
        return self._stepper

    @override
    def step(
        self,
        closure: Callable[[], float] | None = None,
        *,
        examples: int | None = None,
        loss: torch.Tensor | float | None = None,
    ) -> Any:
        """Take one step with the gradients that ``backward`` left, or merge them.

        Args:
            closure: Computes the loss and its gradients, as in torch.
            examples: None: the workers' batches count alike.
            loss: Of this worker's batch; only an adaptive interval needs it.

        Raises:
            CallOrderError: before ``fleet.distributed_model``, or if amp in float16 is on
                and the gradients aren't of a scaled loss.
            TrainingFinishedError: after ``fleet.finish_training``.
            LoadIncompleteError: after a load that succeeded in part.
            WrongModeError: if ``examples`` is given.
            UnusedParametersError: if backward left parameters without a gradient.
            GuardError: if a guard of the strategy ends the training.
            GuardLossError: if a guard needs the loss.
            FleetError: if a worker is lost meanwhile.
        """
        _refuse(examples, "step")
        stepper = self.stepper
        self.check_loaded()
        if self.is_finished:
            raise TrainingFinishedError
        self._take_groups()
        returned = None
        if closure is not None:
            with torch.enable_grad():
                returned = closure()
        self.check_gradients()
        self._end_watching()
        if not self.merge.take():
            return returned
        if self._avg and self.merge.k_steps > 1:
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.div_(self.merge.k_steps)
        self.step_loss = returned if loss is None else loss
        self.num_begun = self.num_steps + 1
        with self._world.together("a step"):
            is_outside = self._is_outside()
            if self.apart is not None:
                self.apart.step(loss=self.step_loss)
            elif not is_outside:
                stepper.step()
        self.num_steps += 1
        return returned

    def watch_losses(self, examples: Callable[[], int]) -> None:
        """Look at worker 0's losses until it takes a step.

        Args:
            examples: Returns how many examples the model was called with.
        """
        if self._world.size > 1 and not self._world.rank and self.plan.apart is None:
            self._watch = ReductionWatch(self.plan.loss_reduction, examples)

    def _end_watching(self) -> None:
        """Look at no further loss: the first step is taken, or no other will be."""
        if self._watch is not None:
            self._watch.end()

    def _any_outside(self, outside: bool) -> bool:  # noqa: FBT001 - a plain answer
        """Return whether a worker's step is outside; apart, only whether this one's is."""
        if self.apart is not None or self._world.alone:
            return outside
        said = torch.tensor(float(outside), device=self._world.device)
        distributed.all_reduce(said, op=distributed.ReduceOp.MAX)
        return bool(said.item())

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss to call ``backward`` on: amp in float16 multiplies it."""
        return loss if self.scaler is None else self.scaler.scaled(loss)

    def unscale(self) -> None:
        """Undo ``scale`` on the gradients, so that they can be clipped before ``step``."""
        if self.scaler is not None:
            self.scaler.unscale()

    @override
    def minimize(self, loss: torch.Tensor, *, examples: int | None = None) -> None:
        """Run ``scale(loss).backward()``, ``step(loss=loss)`` and ``zero_grad()``.

        Raises:
            WrongModeError: if ``examples`` is given.
            FleetError: if a worker is lost meanwhile.
        """
        _refuse(examples, "minimize")
        with self._world.together("the all-reduce of gradients"):
            self.scale(loss).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.last_loss = loss.detach()
        self.step(examples=examples, loss=self.last_loss)
        self.zero_grad()

    @override
    def finish(self) -> None:
        """Take no more steps; workers that trained apart synchronize once more, and agree."""
        self._end_watching()
        if self.apart is not None and not self.is_finished:
            self.apart.synchronize()
        self.is_finished = True

    @property
    @override
    def ledger(self) -> "Ledger | None":
        """What LocalSGD's exchanges cost so far; None where gradients are all-reduced."""
        return None if self.apart is None else self.apart.ledger

    @override
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, unless those of earlier batches wait for more."""
        if not self.merge.is_open:
            super().zero_grad(set_to_none=set_to_none)

    @override
    def _take_groups(self) -> None:
        added = self.param_groups[self._num_groups :]
        if not added:
            return
        rule = ""
        if self._stepper not in {None, self.inner}:
            rule = "a feature of the strategy has its own groups: give the optimizer all before"
        elif self._stepper is not None:
            own = {id(each) for each in self._owned()}
            if any(id(each) not in own for group in added for each in group["params"]):
                rule = "not a parameter of the model, so its gradients would not be all-reduced"
        if rule:
            del self.param_groups[self._num_groups :]
            raise GroupAddedError(rule=rule)
        self._num_groups = len(self.param_groups)

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the state of what steps."""
        return self.stepper.state_dict()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self.stepper.load_state_dict(state_dict)
        self._share_groups()

    def load_common_state(self, state_dict: dict[str, Any]) -> None:
        """Go on from LocalSGD's last synchronization, among another number of workers."""
        assert self.apart is not None, "by all-reduce all state is common"
        self.apart.load_common_state(state_dict)
        self._share_groups()

    def _share_groups(self) -> None:
        """Let rates that are set here, or at the user's optimizer, be those of what steps."""
        self.param_groups = self.inner.param_groups = self.stepper.param_groups
        self._num_groups = len(self.param_groups)

    @override
    def __repr__(self) -> str:
        on = ", ".join(self.plan.features) or "plain"
        return f"CollectiveOptimizer({on}, {self.inner!r})"


def _refuse(examples: int | None, function: str) -> None:
    """Refuse a weight of a batch: all-reduce has none.

    Raises:
        WrongModeError: naming the optimizer's function.
    """
    if examples is not None:
        remedy = "leave out examples: the workers' batches count alike"
        raise WrongModeError(function=f"distributed_optimizer().{function}", remedy=remedy)
