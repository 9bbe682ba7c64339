"""Training in this one process: the reference that every mode is measured against."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet.config.strategy import TrainingMode
from paramfleet.tables.device.source import DeviceSource
from paramfleet.tables.device.stored import put_rows, rows_from
from paramfleet.tables.device.table import DeviceRows
from paramfleet.tables.row_store import RowStore
from paramfleet.tables.sparse import RowSource, SparseTable
from paramfleet.training.evicting.selecting import Selection, answer_of
from paramfleet.training.modes.base import Mode, ModelTables, check_gradients
from paramfleet.training.modes.rowstep import RowStepper, step_rows
from paramfleet.training.passes.backing import PassBacking, PassOpenError
from paramfleet_shared.tables.rows.choosing import discounted
from paramfleet_shared.tables.rows.evicting import AsOf
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["Apart", "LocalMode", "LocalPasses"]


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


class LocalPasses(PassBacking):
    """Rows of the stores of this process.

    Args:
        steppers: What steps the rows of each table.
        num_steps: Returns how many steps this process has taken.
    """

    def __init__(self, steppers: Sequence[RowStepper], num_steps: Callable[[], int]) -> None:
        self._steppers = {stepper.table.name: stepper for stepper in steppers}
        self._count_steps = num_steps
        self._looked_after = 0
        """Steps that had been taken when it was looked last which rows are to go."""
        self._free_rows: dict[str, NDArray[np.int64]] = {}

    @override
    def specs(self) -> dict[str, TableSpec]:
        return {name: stepper.served_spec() for name, stepper in self._steppers.items()}

    @override
    def beneath(self, table: str) -> RowSource:
        return self._steppers[table].store

    @override
    def check_no_pass(self, function: str) -> None:
        if any(stepper.device is not None for stepper in self._steppers.values()):
            raise PassOpenError(function=function)

    @override
    def prepare(self, device: torch.device) -> None:
        self._looked_after = self._count_steps()
        self._count_free_rows()

    def _count_free_rows(self) -> None:
        found = {name: stepper.store.free_rows for name, stepper in self._steppers.items()}
        self._free_rows = {name: each for name, each in found.items() if each is not None}

    @override
    def free_rows(self, table: str) -> NDArray[np.int64] | None:
        return self._free_rows.get(table)

    @override
    def is_eviction_due(self) -> bool:
        before, self._looked_after = self._looked_after, self._count_steps()
        return self.eviction.find_due(before, self._looked_after)

    @override
    def evict(self) -> None:
        self.eviction.evict()
        self._count_free_rows()

    @override
    def read(self, wanted: Mapping[str, NDArray[np.int64]]) -> dict[str, DeviceRows]:
        found = {}
        for table, ids in wanted.items():
            stepper = self._steppers[table]
            found[table] = rows_from(stepper.store, stepper.served_spec(), ids)
        return found

    @override
    def attach(self, sources: Mapping[str, DeviceSource]) -> None:
        for table, source in sources.items():
            stepper = self._steppers[table]
            stepper.device = source
            stepper.table.bind(source)

    @override
    def commit(self) -> int:
        rows = 0
        for stepper in self._steppers.values():
            if stepper.device is None:
                continue
            on_device = stepper.device.rows
            stepped = on_device.stepped()
            put_rows(stepper.store, on_device.spec, stepped, on_device.came())
            on_device.note_taken()
            rows += len(stepped.ids)
        return rows

    @override
    def abandon(self) -> None:
        """Keep what was trained, as a loop without passes does."""
        self.commit()

    @override
    def release(self) -> None:
        for stepper in self._steppers.values():
            if stepper.device is not None:
                stepper.device = None
                stepper.table.bind(stepper.store)


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
        self._passes = LocalPasses(self.steppers, lambda: self._step)
        self._apart = apart
        self._loss = loss
        self._step = 0
        if apart is not None:
            self.ledger = apart.ledger

    def take_tables(self, tables: ModelTables) -> None:
        """Train these tables from now on; those of rows are the same."""
        self._tables = tables

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

    @override
    def write(
        self, table: SparseTable, ids: NDArray[np.int64], values: NDArray[np.float32]
    ) -> None:
        self._passes.check_no_pass("a write of rows")
        (store,) = [each.store for each in self.steppers if each.table is table]
        store.write(ids, values)

    @override
    def discount(
        self, table: SparseTable, ids: NDArray[np.int64], amounts: NDArray[np.float32]
    ) -> None:
        (store,) = [each.store for each in self.steppers if each.table is table]
        discounted(store.column("delta_score")[:, 0], store.held(ids), amounts)

    @override
    def evictable(
        self, table: SparseTable, as_of: AsOf, selection: Selection
    ) -> NDArray[np.int64]:
        self._passes.check_no_pass("shrink")
        (store,) = [each.store for each in self.steppers if each.table is table]
        return answer_of(store.valued(as_of), selection)

    @override
    def num_rows(self, table: SparseTable) -> int:
        (store,) = [each.store for each in self.steppers if each.table is table]
        return store.num_rows

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
