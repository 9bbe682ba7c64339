"""Training in this one process: the reference that every mode is measured against."""

import torch

from paramfleet.modes.base import ModelTables, check_gradients
from paramfleet.modes.rowstep import RowStepper, step_rows
from paramfleet.rowstore import RowStore
from paramfleet.strategy import TrainingMode

__all__ = ["LocalMode"]


class LocalMode:
    """One process, no servers: torch's optimizer on rows and dense parameters.

    Args:
        optimizer: The user's optimizer.
        tables: What its parameters are.
        stores: A store for each sparse table, in the same order.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, tables: ModelTables, stores: list[RowStore]
    ) -> None:
        self._optimizer = optimizer
        self._tables = tables
        self.steppers = [
            RowStepper(optimizer, group, table, store)
            for (table, group), store in zip(tables.sparse, stores, strict=True)
        ]
        self._step = 0

    def start(self) -> None:
        """Nothing to agree on."""

    def step(self, *, examples: int) -> None:
        """Take one step, as ``Mode.step`` promises."""
        del examples  # one batch is the whole batch
        check_gradients(self._tables, step=self._step)
        step_rows(self.steppers, self._optimizer)
        self._step += 1

    def flush(self) -> None:
        """Nothing waits."""

    def reload(self) -> None:
        """Nobody else holds a value."""

    def finish(self) -> None:
        """Nothing waits."""

    def depart(self) -> None:
        """Nobody else is there."""

    def adjust(self, mode: TrainingMode) -> None:
        """Nothing of that matters alone."""
