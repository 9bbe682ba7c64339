"""Training in this one process: the reference that every mode is measured against."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet.config.strategy import TrainingMode
from paramfleet.tables.row_store import RowStore
from paramfleet.tables.sparse import SparseTable
from paramfleet.training.modes.base import Mode, ModelTables, check_gradients
from paramfleet.training.modes.local_passes import LocalPasses
from paramfleet.training.modes.rowstep import RowStepper, step_rows

__all__ = ["Apart", "LocalMode"]


class Apart(Protocol):
    """What steps for LocalSGD, in place of the optimizer."""

    ledger: Any
    """What its exchanges cost."""

    def land(self) -> None:
        """Take in the exchanges that have ended."""
        ...

    def step(self, *, loss: torch.Tensor | float | None) -> None:
        """Take one step, and exchange if it is time."""
        ...

    def synchronize(self) -> None:
        """Exchange the rest."""
        ...


class LocalMode(Mode):
    """One process, no servers: torch's optimizer on rows and dense parameters.

    Args:
        optimizer: The user's optimizer.
        tables: What its parameters are.
        stores: A store for each sparse table, in the same order.
        apart: What steps instead, in LocalSGD; it needs no table.
        loss: Returns the loss of the step in progress, if the script said it.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        tables: ModelTables,
        stores: list[RowStore],
        *,
        apart: Apart | None = None,
        loss: Callable[[], torch.Tensor | float | None] = lambda: None,
    ) -> None:
        self._optimizer = optimizer
        self._tables = tables
        self.steppers = [
            RowStepper(optimizer, group, table, store)
            for (table, group), store in zip(tables.sparse, stores, strict=True)
        ]
        self._passes = LocalPasses(self.steppers)
        self._apart = apart
        self._loss = loss
        self._step = 0
        if apart is not None:
            self.ledger = apart.ledger

    def start(self) -> None:
        """Nothing to agree on."""

    def step(self, *, examples: int) -> None:
        """Take one step, as ``Mode.step`` promises."""
        del examples  # one batch is the whole batch
        check_gradients(self._tables, step=self._step)
        if self._apart is None:
            step_rows(self.steppers, self._optimizer)
        else:
            self._apart.land()
            self._apart.step(loss=self._loss())
        self._step += 1

    def flush(self) -> None:
        """Bring back what was stepped on a device."""
        self._passes.commit()

    @property
    @override
    def passes(self) -> LocalPasses:
        return self._passes

    def reload(self, *, workers: int) -> None:
        """Nobody else holds a value."""
        del workers

    @override
    def remove(self, table: SparseTable, ids: NDArray[np.int64]) -> int:
        self._passes.check_no_pass("remove_rows")
        (store,) = [each.store for each in self.steppers if each.table is table]
        return len(store.remove(ids))

    def finish(self) -> None:
        """Nothing waits but LocalSGD's last outer step."""
        if self._apart is not None:
            self._apart.synchronize()

    def begins_anew(self, *, kept: bool, saved: bool, served: bool) -> bool:
        """Return whether the checkpoint lacks the states; of served optimizers it has them."""
        return kept and not saved and not served

    def depart(self) -> None:
        """Nobody else is there."""

    def adjust(self, mode: TrainingMode) -> None:
        """Nothing of that matters alone."""
