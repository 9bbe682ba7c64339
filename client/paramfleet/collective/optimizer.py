"""The optimizer of a collective job: torch's own, behind what the strategy adds.

It is a ``torch.optim.Optimizer`` over the same parameter groups, so that learning-rate
schedulers and ``clip_grad_norm_`` work on it.
"""

from collections.abc import Callable
from typing import Any

import torch
from typing_extensions import override

from paramfleet.call_order import CallOrderError
from paramfleet.collective.merging import Merge
from paramfleet.collective.world import World
from paramfleet.localsgd.core.ledger import Ledger
from paramfleet.localsgd.optimizer import LocalSgdOptimizer
from paramfleet.strategy import CollectiveMode

__all__ = ["CollectiveOptimizer"]


class CollectiveOptimizer(torch.optim.Optimizer):
    """Made by ``fleet.distributed_optimizer`` in collective mode.

    Args:
        inner: The user's optimizer.
        mode: The strategy.
        world: The workers.
    """

    def __init__(
        self, inner: torch.optim.Optimizer, mode: CollectiveMode, world: World
    ) -> None:
        super().__init__(inner.param_groups, inner.defaults)
        self.inner = inner
        self.mode = mode
        self.num_steps = 0
        """Steps taken; batches that are merged are one."""
        self.last_loss: torch.Tensor | None = None
        """What ``minimize`` was given last, without its graph."""
        merging = mode.features.get("gradient_merge", {})
        self.merge = Merge(merging.get("k_steps", 1))
        self._avg = merging.get("avg", True)
        self._world = world
        self._stepper: torch.optim.Optimizer | None = None

    def step_through(self, stepper: torch.optim.Optimizer) -> None:
        """Step through ``stepper``, which shares the parameter groups, from now on."""
        self._stepper = stepper

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
    def step(  # type: ignore[override]  # torch's overloads
        self,
        closure: Callable[[], float] | None = None,
        *,
        loss: float | torch.Tensor | None = None,
    ) -> float | None:
        """Take one step with the gradients that ``backward`` left, or merge them.

        Args:
            closure: Computes the loss and its gradients, as in torch.
            loss: Of the batch, which adaptive LocalSGD asks for. A closure returns it.

        Raises:
            CallOrderError: before ``fleet.distributed_model``.
            PeersLostError: if a worker is lost meanwhile.
            LossMissingError: if adaptive LocalSGD isn't told the loss.
            MeetingLostError: if a worker didn't come to a meeting of LocalSGD.
        """
        stepper = self.stepper
        returned = None
        if closure is not None:
            with torch.enable_grad():
                returned = closure()
        if not self.merge.take():
            return returned
        if self._avg and self.merge.k_steps > 1:
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.div_(self.merge.k_steps)
        with self._world.together("a step"):
            if isinstance(stepper, LocalSgdOptimizer):
                stepper.step(loss=returned if loss is None else loss)
            else:
                stepper.step()
        self.num_steps += 1
        return returned

    def minimize(self, loss: torch.Tensor) -> None:
        """Run ``loss.backward()``, ``step()`` and ``zero_grad()``.

        Raises:
            PeersLostError: if a worker is lost meanwhile.
        """
        with self._world.together("the all-reduce of gradients"):
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.last_loss = loss.detach()
        self.step(loss=self.last_loss)
        self.zero_grad()

    def finish(self) -> None:
        """Let workers that train apart agree; nothing else has anything to finish.

        Raises:
            MeetingLostError: if a worker didn't come in time.
        """
        if isinstance(self._stepper, LocalSgdOptimizer):
            self._stepper.synchronize()

    @property
    def ledger(self) -> Ledger | None:
        """What LocalSGD's exchanges cost so far; None where gradients are all-reduced."""
        apart = self._stepper
        return apart.ledger if isinstance(apart, LocalSgdOptimizer) else None

    @override
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, unless those of earlier batches wait for more."""
        if not self.merge.is_open:
            super().zero_grad(set_to_none=set_to_none)

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the state of what steps."""
        return self.stepper.state_dict()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self.stepper.load_state_dict(state_dict)
        self.param_groups = self.stepper.param_groups

    @override
    def __repr__(self) -> str:
        on = ", ".join(self.mode.features) or "plain"
        return f"CollectiveOptimizer({on}, {self.inner!r})"
