"""The optimizer that training code holds: any of torch's, that synchronizes between its steps.

It is a ``torch.optim.Optimizer`` over the same parameter groups, so that learning-rate
schedulers, ``clip_grad_norm_`` and ``zero_grad`` work on it. The schedule says when a
fragment is exchanged, the synchronizer does it, and here its result reaches the model.

Shape legend: F = values of a fragment.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, overload

import torch
from typing_extensions import override

from paramfleet.training.localsgd.core.ledger import Ledger
from paramfleet.training.localsgd.core.schedule import Action, Schedule
from paramfleet.training.localsgd.core.settings import LocalSgdSettings, LocalSgdSettingsError
from paramfleet.training.localsgd.inner_state import forget_state, state_tensors
from paramfleet.training.localsgd.layout import Layout, trained_parameters, write_flat
from paramfleet.training.localsgd.synchronizer import (
    Averaging,
    InPlace,
    Landing,
    Pending,
    Restorable,
    Synchronizer,
)
from paramfleet_shared.errors import ContractError
from paramfleet_shared.system.clock import Clock, SystemClock

__all__ = ["LocalSgdOptimizer", "LossMissingError", "NotFiniteError"]


class LossMissingError(ContractError):
    """An adaptive period needs the loss of each step, and it wasn't given."""

    code = "contract.localsgd_loss_missing"
    sentence = (
        "an adaptive period follows the loss: call optimizer.minimize(loss), "
        "optimizer.step(loss=loss) or optimizer.step(closure)"
    )


class NotFiniteError(ContractError):
    """What this worker learned holds NaN or infinities; nothing of it was sent."""

    code = "contract.localsgd_not_finite"
    fragment: int
    step: int
    count: int
    sentence = (
        "fragment {fragment}: {count} values are NaN or infinite after step {step}: they "
        "would spread to all workers; look at the batches, the loss and the learning rate"
    )


@dataclass(slots=True)
class _UnderWay:
    """An exchange that has begun."""

    pending: Pending | None
    """None if it has ended already, in place."""
    step: int
    """After which it began."""
    local_F: torch.Tensor | None
    """The worker's values when it began, where its progress since is to be kept."""
    averages: list[tuple[Pending, list[torch.Tensor]]]
    """Means that come with it, and where they go."""


class LocalSgdOptimizer(torch.optim.Optimizer):
    """Steps by itself, and synchronizes with the other workers now and then.

    Args:
        inner: The torch optimizer over the model's parameters. They have the same values on
            all workers.
        settings: The same on all workers.
        synchronizer: Where the workers exchange fragments as ``Layout`` cuts them.
        ledger: Which the synchronization counts in too.
        buffers: The model's; those of floats get the workers' mean once a period.
        clock: What stalls are measured by.

    Raises:
        LocalSgdSettingsError: if the synchronization can't average what is to be averaged.
    """

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        settings: LocalSgdSettings,
        synchronizer: Synchronizer,
        *,
        ledger: Ledger,
        buffers: Iterable[torch.Tensor] = (),
        clock: Clock | None = None,
    ) -> None:
        self._layout: Layout | None = None
        super().__init__(inner.param_groups, inner.defaults)
        self.inner = inner
        self.ledger = ledger
        """What the synchronizations cost so far."""
        self.schedule = Schedule(settings)
        """When the workers synchronize."""
        self._settings = settings
        self._synchronizer = synchronizer
        self._buffers = [buffer for buffer in buffers if buffer.is_floating_point()]
        self._check_averaging()
        layout = Layout(trained_parameters(inner), settings.fragments)
        assert list(synchronizer.fragments) == layout.sizes
        self._layout = layout
        self._clock = clock or SystemClock()
        self._snapshots = [layout.read(number) for number in range(len(layout.sizes))]
        self._under_way: dict[int, _UnderWay] = {}
        self._losses: list[float | torch.Tensor] = []
        ledger.chose(self.schedule.k_steps, step=0)

    @overload
    def step(
        self, closure: None = None, *, loss: float | torch.Tensor | None = None
    ) -> None: ...
    @overload
    def step(
        self,
        closure: Callable[[], float],
        *,
        loss: float | torch.Tensor | None = None,
    ) -> float: ...
    @override
    def step(
        self,
        closure: Callable[[], float] | None = None,
        *,
        loss: float | torch.Tensor | None = None,
    ) -> float | None:
        """Take one step with the gradients of ``backward``, and synchronize if it is time.

        Args:
            closure: Computes the loss and its gradients, as in torch.
            loss: Of this worker's batch, for an adaptive period. A closure returns it.

        Raises:
            LossMissingError: if the period is adaptive and no loss was given.
            NotFiniteError: if this worker's values are NaN or infinite.
            FleetError: if an exchange failed or a worker didn't come in time.
        """
        if self.schedule.needs_losses and closure is None and loss is None:
            raise LossMissingError
        returned = None if closure is None else self.inner.step(closure)
        if closure is None:
            self.inner.step()
        self._note_loss(returned if loss is None else loss)
        self.ledger.stepped()
        for action in self.schedule.after_step():
            self._do(action)
        return returned

    def minimize(self, loss: torch.Tensor) -> None:
        """Run ``loss.backward()``, ``step(loss=loss)`` and ``zero_grad()``."""
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.step(loss=loss)
        self.zero_grad()

    def synchronize(self) -> None:
        """End what is under way and exchange all once more: then all workers agree.

        Call it on all workers, after the same number of steps: before the last evaluation,
        and before a checkpoint that one worker saves for all.

        Raises:
            FleetError: if an exchange failed or a worker didn't come in time.
        """
        for action in self.schedule.close():
            self._do(action)

    def land(self, *, wait: bool = False) -> None:
        """End exchanges before they are due: those whose result is there, or all.

        For workers that wait for nobody; those of a group end them by the schedule alone.

        Raises:
            FleetError: if an exchange failed.
        """
        if wait:
            actions = self.schedule.end_all()
        else:
            there = [
                fragment
                for fragment, under_way in self._under_way.items()
                if under_way.pending is None
                or (isinstance(under_way.pending, Landing) and under_way.pending.done())
            ]
            actions = [self.schedule.end_early(fragment) for fragment in there]
        for action in actions:
            self._do(action)

    @override
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: the fragments are laid out when the optimizer is made.

        Raises:
            LocalSgdSettingsError: if the optimizer has been made.
        """
        if self._layout is not None:
            rule = "add them to the torch optimizer before it is wrapped"
            raise LocalSgdSettingsError(key="add_param_group", value="...", rule=rule)
        super().add_param_group(param_group)

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return tensors, numbers and lists from which this worker goes on.

        It ends the exchanges under way, so call it on all workers after the same step. The
        snapshots and outer momenta are alike on all workers; what a narrow format lost, and
        the inner state under ``optimizer_state = "keep"``, are each worker's own.
        """
        for action in self.schedule.end_all():
            self._do(action)
        synchronizer = self._synchronizer
        return {
            "inner": self.inner.state_dict(),
            "schedule": self.schedule.state_dict(),
            "snapshots": [snapshot_F.clone() for snapshot_F in self._snapshots],
            "meeting": synchronizer.state_dict()
            if isinstance(synchronizer, Restorable)
            else {},
            "ledger": self.ledger.state_dict(),
            "losses": [float(loss) for loss in self._losses],
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where ``state_dict`` was asked; the model has its own state from then."""
        self.inner.load_state_dict(state_dict["inner"])
        self.param_groups = self.inner.param_groups
        self.schedule.load_state_dict(state_dict["schedule"])
        device = self._snapshots[0].device
        self._snapshots = [each.to(device).clone() for each in state_dict["snapshots"]]
        if isinstance(self._synchronizer, Restorable):
            self._synchronizer.load_state_dict(state_dict["meeting"])
        self.ledger.load_state_dict(state_dict["ledger"])
        self._losses = list(state_dict["losses"])

    def load_common_state(self, state_dict: dict[str, Any]) -> None:
        """Go on from the last synchronization, among another number of workers.

        The model gets the snapshots' values, which all workers had in common, as outer momenta
        and schedule. What a narrow format lost is forgotten.

        Args:
            state_dict: Of any of the workers that there were.
        """
        assert self._layout is not None
        meeting = state_dict["meeting"]
        if isinstance(self._synchronizer, Restorable):
            residuals = self._synchronizer.state_dict()["residuals"]
            meeting = {**meeting, "residuals": residuals}
        self.load_state_dict({**state_dict, "meeting": meeting})
        for fragment, snapshot_F in enumerate(self._snapshots):
            self._layout.write(fragment, snapshot_F)

    @override
    def __repr__(self) -> str:
        return f"LocalSgdOptimizer({self._settings!r}, {self.inner!r})"

    def _check_averaging(self) -> None:
        if isinstance(self._synchronizer, Averaging):
            return
        name = type(self._synchronizer).__name__
        if self._settings.optimizer_state == "average":
            rule = f"{name} has nowhere to average it: use 'keep' or 'reset'"
            raise LocalSgdSettingsError(key="optimizer_state", value="'average'", rule=rule)
        if self._buffers:
            rule = (
                f"{name} has nowhere to average them; pass none, and each worker keeps its own"
            )
            raise LocalSgdSettingsError(key="buffers", value=str(len(self._buffers)), rule=rule)

    def _note_loss(self, loss: float | torch.Tensor | None) -> None:
        """Keep a step's loss; a tensor is read at the next synchronization only."""
        if not self.schedule.needs_losses:
            return
        assert loss is not None
        self._losses.append(loss.detach() if isinstance(loss, torch.Tensor) else loss)

    def _do(self, action: Action) -> None:
        if action.kind == "begin":
            self._begin(action.fragment)
        else:
            self._end(action.fragment)

    def _begin(self, fragment: int) -> None:
        if isinstance(self._synchronizer, InPlace) and self._synchronizer.is_in_place:
            self._under_way[fragment] = self._exchanged_in_place(fragment, self._synchronizer)
        else:
            self._under_way[fragment] = self._begun(fragment)
        self.ledger.exchanged()
        losses, self._losses = self._losses, []
        if self.schedule.wants_loss:
            self._choose(losses)

    def _begun(self, fragment: int) -> _UnderWay:
        assert self._layout is not None
        local_F = self._layout.read(fragment)
        snapshot_F = self._snapshots[fragment]
        delta_F = snapshot_F - local_F
        if not bool(delta_F.isfinite().all()):
            count = int((~delta_F.isfinite()).sum())
            raise NotFiniteError(fragment=fragment, step=self.schedule.step, count=count)
        is_carried = self._settings.overlap_steps > 0 and self._settings.mixing is None
        return _UnderWay(
            pending=self._synchronizer.exchange(fragment, snapshot_F, delta_F),
            step=self.schedule.step,
            local_F=local_F if is_carried else None,
            averages=self._begin_averages(fragment),
        )

    def _exchanged_in_place(self, fragment: int, synchronizer: InPlace) -> _UnderWay:
        snapshot_F = self._snapshots[fragment]
        if count := synchronizer.num_nonfinite(fragment, snapshot_F):
            raise NotFiniteError(fragment=fragment, step=self.schedule.step, count=count)
        began = self._clock.monotonic()
        synchronizer.exchange_in_place(fragment, snapshot_F)
        self.ledger.stalled(self._clock.monotonic() - began)
        return _UnderWay(pending=None, step=self.schedule.step, local_F=None, averages=[])

    def _begin_averages(self, fragment: int) -> list[tuple[Pending, list[torch.Tensor]]]:
        """Begin to average what comes with a fragment, and say where it goes."""
        assert self._layout is not None
        averaged = []
        if self._settings.optimizer_state == "average":
            averaged.append(state_tensors(self.inner, self._layout.fragments[fragment]))
        if fragment == 0:
            averaged.append(self._buffers)
        begun = []
        for tensors in averaged:
            if tensors:
                assert isinstance(self._synchronizer, Averaging)
                flat_F = torch.cat([tensor.detach().reshape(-1).float() for tensor in tensors])
                begun.append((self._synchronizer.average(flat_F), tensors))
        return begun

    def _choose(self, losses: list[float | torch.Tensor]) -> None:
        """Let the period follow the workers' mean loss since the last synchronization."""
        own = sum(float(loss) for loss in losses) / len(losses)
        began = self._clock.monotonic()
        loss = self._synchronizer.mean(own)
        self.ledger.stalled(self._clock.monotonic() - began)
        rate = float(self.param_groups[0]["lr"])
        self.ledger.chose(self.schedule.choose(loss=loss, rate=rate), step=self.schedule.step)

    def _end(self, fragment: int) -> None:
        assert self._layout is not None
        under_way = self._under_way.pop(fragment)
        if under_way.pending is not None:
            self._land(fragment, under_way.pending, under_way)
        if self._settings.optimizer_state == "reset":
            forget_state(self.inner, self._layout.fragments[fragment])

    def _land(self, fragment: int, pending: Pending, under_way: _UnderWay) -> None:
        assert self._layout is not None
        began = self._clock.monotonic()
        new_F = pending.wait()
        means = [(pending.wait(), tensors) for pending, tensors in under_way.averages]
        self.ledger.stalled(self._clock.monotonic() - began)
        self._snapshots[fragment] = new_F
        self._layout.write(fragment, self._landed(fragment, new_F, under_way))
        for mean_F, tensors in means:
            write_flat(tensors, mean_F)

    def _landed(self, fragment: int, new_F: torch.Tensor, under_way: _UnderWay) -> torch.Tensor:
        """Return what the worker goes on with, float32 [F].

        Training that went on meanwhile made progress of its own: it is kept whole (CoCoD-SGD:
        Shen et al., 2019), or the worker's values are mixed into the new ones (Streaming
        DiLoCo).
        """
        assert self._layout is not None
        if under_way.step == self.schedule.step:
            return new_F
        if under_way.local_F is not None:
            return new_F + (self._layout.read(fragment) - under_way.local_F)
        if self._settings.mixing:
            return torch.lerp(new_F, self._layout.read(fragment), self._settings.mixing)
        return new_F
