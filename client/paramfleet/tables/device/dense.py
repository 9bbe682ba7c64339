"""A dense table that this process steps itself, with the states of its rule.

The rule steps it by the same arithmetic as pservers do: on a processor by their kernel, on
another device by torch's operations (``formulas``).

Shape legend: P = values of the table, S = states of each.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.tables.dense import DenseBlock
from paramfleet.tables.device.formulas import step_values
from paramfleet.tables.devices import to_device, to_host
from paramfleet_shared.tables.dense import DenseRange
from paramfleet_shared.tables.rules.record import Moment
from paramfleet_shared.tables.spec import TableSpec

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
        self.spec = spec
        self._device = device
        self._range = DenseRange(spec, 0, spec.size)
        self._on_device: tuple[torch.Tensor, torch.Tensor] | None = None
        """Values [P] and states [S, P] elsewhere than on a processor."""
        self.is_stepped = False
        """Whether its optimizer has stepped it, ever."""

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

    def step(
        self,
        moment: Moment,
        combined: Callable[[torch.Tensor], torch.Tensor] = lambda grads: grads,
    ) -> None:
        """Let the rule step every value by the gradients of the parameters.

        Args:
            moment: Learning rate and number of the step.
            combined: Returns what stands for the gradients, float32 [P], on their device.
        """
        if self._on_device is None:
            grads = combined(torch.from_numpy(self.block.gradients())).numpy()
            lr, number, first, _now = moment
            self._range.push_pieces(lambda where: grads[where], lr=lr, step=number, first=first)
            self.block.install(self._range.values)
        else:
            self._step_by_torch(*self._on_device, moment, combined)
        self.is_stepped = True

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
        moment: Moment,
        combined: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        flat = [
            (torch.zeros_like(each) if each.grad is None else each.grad.detach())
            .reshape(-1)
            .to(self._device, torch.float32)
            for each in self.block.parameters
        ]
        grads = combined(torch.cat(flat)).view(1, -1)
        former = [state.view(1, -1) for state in states]
        moved, kept = step_values(
            self.spec.optimizer, moment, values.view(1, -1), former, grads, sparse=False
        )
        values.copy_(moved.view(-1))
        for state, new in zip(states, kept, strict=True):
            state.copy_(new.view(-1))
        self.block.install_from(values)
