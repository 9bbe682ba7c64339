"""Let a torch optimizer step rows of a ``RowStore`` as if they were a parameter.

Before a step the placeholder gets the rows of the batch and their optimizer
state; after it both go back to the store. So the arithmetic is torch's own, any
elementwise optimizer works, and only rows of the batch move (the lazy variant).
For ``torch.optim.Adam`` the rows are stepped by ``torch.optim.SparseAdam``, which
is what the pservers compute.

Shape legend: U = unique ids, D = row width.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.rowstore import RowStore
from paramfleet.rules import server_rule
from paramfleet.sparse import SparseTable

__all__ = ["RowStepper", "step_rows"]


class RowStepper:
    """Steps the rows of one table.

    Args:
        optimizer: The user's optimizer.
        group: Its parameter group that holds the table's placeholder.
        table: The table.
        store: Where its rows live.

    Raises:
        OptimizerNotServedError: if it is ``Adam`` with an option that rows don't have.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        group: dict[str, Any],
        table: SparseTable,
        store: RowStore,
    ) -> None:
        self.table = table
        self.store = store
        self._group = group
        self._own: torch.optim.SparseAdam | None = None
        if type(optimizer) is torch.optim.Adam:
            known = {**group, "maximize": False}  # SparseAdam has it
            server_rule(optimizer, known, sparse=True)  # refuses what it doesn't have
            self._own = torch.optim.SparseAdam([table.weight])
        self._optimizer: torch.optim.Optimizer = self._own or optimizer
        self._first, self._counts_steps = _first_states(self._optimizer, group, table.dim)
        for name, first in self._first.items():
            store.add_column(name, first)

    def lend(self) -> NDArray[np.int64] | None:
        """Put the batch's rows and states into the placeholder.

        Returns:
            The slots that ``take_back`` needs; None if no gradient is pending.
        """
        pending = self.table.pending()
        if pending is None:
            return None
        slots = self.store.slots(pending.ids_U)
        weight = self.table.weight
        grads = weight.grad
        weight.grad = None
        weight.data = torch.from_numpy(self.store.values[slots]).to(weight)
        weight.grad = grads
        state = self._optimizer.state[weight]
        if state:
            for name in self._first:
                state[name] = torch.from_numpy(self.store.column(name)[slots]).to(weight)
        if self._own is not None:
            self._step_own(self._own)
        return slots

    def take_back(self, slots: NDArray[np.int64]) -> None:
        """Store the stepped rows and states."""
        weight = self.table.weight
        self.store.values[slots] = weight.detach().to("cpu", torch.float32).numpy()
        state = self._optimizer.state[weight]
        for name in self._first:
            self.store.column(name)[slots] = state[name].to("cpu", torch.float32).numpy()

    def restore(
        self,
        slots: NDArray[np.int64],
        columns: Mapping[str, NDArray[np.float32]],
        *,
        steps: int,
    ) -> None:
        """Set optimizer states of rows, as a checkpoint kept them.

        Args:
            slots: Where the rows are.
            columns: float32 [U, D] by the name of the state.
            steps: Steps that the optimizer had taken; 0 leaves the state new.
        """
        if not steps:
            return
        for name, values in columns.items():
            self.store.column(name)[slots] = values
        state = self._optimizer.state[self.table.weight]
        if self._counts_steps is not None:
            state["step"] = self._counts_steps(steps)
        state.update(dict.fromkeys(columns))

    def _step_own(self, own: torch.optim.SparseAdam) -> None:
        weight = self.table.weight
        grads = weight.grad
        assert grads is not None, "lend() saw it"
        for option in ("lr", "betas", "eps", "maximize"):
            own.param_groups[0][option] = self._group[option]
        index = torch.arange(len(grads), device=grads.device).unsqueeze(0)
        weight.grad = torch.sparse_coo_tensor(
            index, grads, grads.shape, is_coalesced=True, check_invariants=False
        )
        own.step()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        weight.grad = grads

    @property
    def steps_itself(self) -> bool:
        """Whether the user's optimizer must leave the placeholder alone."""
        return self._own is not None


def step_rows(
    steppers: list[RowStepper], optimizer: torch.optim.Optimizer
) -> list[NDArray[np.int64] | None]:
    """Take one step of dense parameters and pending rows together.

    Returns:
        The slots that each stepper's rows live in; None where nothing was pending.
    """
    lent = [stepper.lend() for stepper in steppers]
    held: list[tuple[torch.nn.Parameter, torch.Tensor | None]] = []
    for stepper, slots in zip(steppers, lent, strict=True):
        if stepper.steps_itself or slots is None:
            weight = stepper.table.weight
            held.append((weight, weight.grad))
            weight.grad = None
    optimizer.step()
    for weight, grads in held:
        weight.grad = grads
    for stepper, slots in zip(steppers, lent, strict=True):
        if slots is not None:
            stepper.take_back(slots)
    return lent


def _first_states(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], dim: int
) -> tuple[dict[str, NDArray[np.float32]], Callable[[int], Any] | None]:
    """Return what an optimizer keeps beside a row.

    Returns:
        What each per-row state starts as, float32 [D], by the optimizer's name for
        it: what a step with a zero gradient leaves beside a zero row. And how the
        optimizer writes down a number of steps; None if it doesn't count them.
    """
    known = inspect.signature(type(optimizer)).parameters
    options = {key: value for key, value in group.items() if key in known and key != "params"}
    row = torch.nn.Parameter(torch.zeros(1, dim))
    probe = type(optimizer)([row], **options)
    row.grad = torch.zeros(1, dim)
    if isinstance(probe, torch.optim.SparseAdam):
        row.grad = row.grad.to_sparse(1)
    probe.step()
    state = probe.state[row]
    first = {
        name: value[0].numpy().astype(np.float32)
        for name, value in state.items()
        if isinstance(value, torch.Tensor) and value.shape == row.shape
    }
    if "step" not in state:
        return first, None
    is_tensor = isinstance(state["step"], torch.Tensor)
    return first, (lambda steps: torch.tensor(float(steps)) if is_tensor else steps)
