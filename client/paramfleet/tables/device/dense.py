"""A dense table that this process steps itself, with the states of its rule.

The rule steps it by the same arithmetic as pservers do: on a processor by their kernel, on
another device by torch's operations (``formulas``).

Shape legend: P = values of the table, S = states of each.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.tables.dense import DenseBlock, SetValues
from paramfleet.tables.device.formulas import step_values
from paramfleet.tables.devices import to_device, to_host
from paramfleet_shared.tables.dense import DenseRange
from paramfleet_shared.tables.rules.record import Moment
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec
from paramfleet_shared.values.spans import MissedUpdates, Span

__all__ = ["DenseOnDevice"]


class DenseOnDevice:
    """Values and states of one dense table. One thread owns it.

    Args:
        block: The parameters; each step installs the values there.
        spec: The table with its rule.
        device: Where it is stepped.
    """

    def __init__(self, block: DenseBlock, spec: TableSpec, *, device: torch.device) -> None:
        self.block = block
        block.notes_changes = True
        self.spec = spec
        self._device = device
        self._range = DenseRange(spec, 0, spec.size)
        self._on_device: tuple[torch.Tensor, torch.Tensor] | None = None
        """Values [P] and states [S, P] elsewhere than on a processor."""
        self.is_stepped = False
        """Whether its optimizer has stepped it, ever."""
        self.missed = MissedUpdates()
        """How many of its updates had no gradient for each value."""
        self._rule = spec.optimizer

    @property
    def num_bytes(self) -> int:
        """Return the memory of values and states."""
        return self._range.num_bytes

    def take(
        self, values: NDArray[np.float32], states: NDArray[np.float32], *, is_stepped: bool
    ) -> None:
        """Begin with these, and install the values.

        Args:
            values: float32 [P].
            states: float32 [S, P].
            is_stepped: Whether the optimizer has stepped them.
        """
        self._range.put(0, values, states, stepped=is_stepped)
        self.is_stepped = is_stepped
        if self._device.type != "cpu":
            self._on_device = (
                to_device(torch.from_numpy(self._range.values), self._device),
                to_device(torch.from_numpy(self._range.states), self._device),
            )
        self.block.install(values)

    def train_by(self, rule: OptimizerSpec) -> None:
        """Step from now on with the numbers of a rule: the table's, perhaps with others."""
        self._rule = rule
        self._range.train_by(rule)

    def set_some(self, changes: SetValues) -> None:
        """Overwrite values that the program has changed."""
        if self._on_device is None:
            self._range.set_some(*changes)
        else:
            places = to_device(torch.from_numpy(changes.places), self._device)
            given = to_device(torch.from_numpy(changes.values), self._device)
            self._on_device[0].index_copy_(0, places, given)

    def step(
        self,
        moment: Moment,
        spans: Sequence[Span] | None = None,
        combined: Callable[[torch.Tensor], torch.Tensor] = lambda grads: grads,
    ) -> None:
        """Let the rule step values by the gradients of the parameters.

        Args:
            moment: Learning rate and number of the step.
            spans: Which values have a gradient; None for all.
            combined: Returns what stands for the gradients, float32 [P], on their device.
        """
        size = self.spec.size
        segments = [(0, size, moment)]
        if spans is not None and not spans:
            segments = []
        elif spans is not None or self.missed:
            stepping = ((0, size),) if spans is None else spans
            segments = [
                (start, stop, moment._replace(step=number, first=moment.first or number == 1))
                for start, stop, number in self.missed.step(stepping, moment.step, (0, size))
            ]
        if self._on_device is None:
            grads = combined(torch.from_numpy(self.block.gradients())).numpy()
            for start, stop, (lr, number, first, _now) in segments:
                read = partial(_part_from, grads, start)
                num = stop - start
                self._range.push_pieces(
                    read, lr=lr, step=number, at=start, num=num, first=first
                )
            self.block.install(self._range.values)
        else:
            self._step_by_torch(*self._on_device, segments, combined)
        self.is_stepped |= bool(segments)

    def numbers(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return values, float32 [P], and states, float32 [S, P]; they may change."""
        if self._on_device is None:
            return self._range.values, self._range.states
        values, states = (to_host(each, dtype=torch.float32) for each in self._on_device)
        return values.numpy(), states.numpy()

    def _step_by_torch(
        self,
        values: torch.Tensor,
        states: torch.Tensor,
        segments: Sequence[tuple[int, int, Moment]],
        combined: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        flat = [
            (torch.zeros_like(each) if each.grad is None else each.grad.detach())
            .reshape(-1)
            .to(self._device, torch.float32)
            for each in self.block.parameters
        ]
        grads = combined(torch.cat(flat)).view(1, -1)
        for start, stop, moment in segments:
            former = [state[start:stop].view(1, -1) for state in states]
            own, given = values[start:stop].view(1, -1), grads[:, start:stop]
            moved, kept = step_values(self._rule, moment, own, former, given, sparse=False)
            values[start:stop] = moved.view(-1)
            for state, new in zip(states, kept, strict=True):
                state[start:stop] = new.view(-1)
        self.block.install_from(values)


def _part_from(grads: NDArray[np.float32], start: int, piece: slice) -> NDArray[np.float32]:
    return grads[start + piece.start : start + piece.stop]
