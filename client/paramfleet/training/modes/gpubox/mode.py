"""gpubox: this worker trains rows itself, a pass over data at a time.

Within a pass every lookup and every step is on the device's rows. At its end values and
states go back to the pservers together, dense tables with them (``served_rows``). Pservers
see nothing of a pass before. A worker that dies in the middle leaves them as they were when it
began: its next incarnation runs the same script, is handed no batch of the passes that are
done, and trains the one that isn't.
"""

import logging
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet.config.strategy import TrainingMode
from paramfleet.tables.sparse import SparseTable
from paramfleet.training.evicting.selecting import Selection
from paramfleet.training.job import Job
from paramfleet.training.modes.base import ModelTables, check_gradients
from paramfleet.training.modes.gpubox.passes import (
    LookupNotSaidError,
    NoPassError,
    ServedPasses,
)
from paramfleet.training.modes.prefetching.ahead import Expecting, Wanted
from paramfleet.training.modes.served import ServedMode
from paramfleet.training.passes.running import DevicePasses
from paramfleet.training.stepping.reductions import (
    ReductionWatch,
    check_sums,
    watch_losses,
)
from paramfleet_shared.tables.rows.evicting import AsOf

__all__ = ["GpuBoxMode"]

log = logging.getLogger(__name__)


class GpuBoxMode(ServedMode):
    """Passes with rows on a device; pservers hold all rows beneath.

    One worker trains what sync with one worker does, to the bit on a processor.
    """

    def __init__(
        self,
        job: Job,
        mode: TrainingMode,
        optimizer: torch.optim.Optimizer,
        tables: ModelTables,
    ) -> None:
        super().__init__(job, mode, optimizer, tables)
        self._passes = ServedPasses(
            job, self._specs, tables, self, self.refresh, self.send_changes
        )
        self._passes.sums = mode.loss_reduction == "sum"
        self._watch: ReductionWatch | None = None

    @override
    def start(self) -> None:
        """Start as every served mode, and end a pass that a former incarnation left."""
        if self._mode.loss_reduction == "sum":
            check_sums([table for table, _ in self._tables.sparse])
        super().start()
        self._passes.resolve()
        self.refresh()
        self._watch = watch_losses(self._job, self._mode.loss_reduction)

    @property
    @override
    def passes(self) -> ServedPasses:
        return self._passes

    @property
    @override
    def serving(self) -> Expecting | None:
        """Return the mode between passes: in one, no rows travel."""
        return None if self._passes.is_open else self

    @override
    def lookup(
        self,
        table: SparseTable,
        ids_U: NDArray[np.int64],
        offsets: NDArray[np.int64],
        *,
        create: bool,
    ) -> NDArray[np.float32]:
        """Pull rows that aren't trained.

        Raises:
            NoPassError: if they would be.
            LookupNotSaidError: if they would be, and the pass knows no id of the table.
        """
        if create and self._passes.is_trained:
            raise LookupNotSaidError(table=table.name)
        if create and not self._passes.is_repeated:
            raise NoPassError(what=f"a lookup of table {table.name!r} in training")
        return super().lookup(table, ids_U, offsets, create=False)

    @override
    def expect(self, wanted: Sequence[Wanted]) -> None:
        """Pull rows that aren't trained; of others, the lookup will say what is wrong."""
        if not any(each.create for each in wanted):
            super().expect(wanted)

    @override
    def step(self, *, examples: int) -> None:
        """Step rows and dense tables where they are; no pserver is asked."""
        self._passes.check_step()
        if self._watch is not None:
            self._watch.end()
        check_gradients(self._tables, step=self._step)
        self.check_rules()
        self._passes.train_by(self.rules)
        self._passes.step(examples=examples)
        self._step += 1

    @override
    def skip(self) -> None:
        """Go along with the others' step, and have no part in it."""
        self._passes.check_step()
        self._passes.skip()
        self._step += 1

    @override
    def flush(self) -> None:
        """Nothing waits between passes, but values that the program has changed.

        Raises:
            PassOpenError: during one: pservers have nothing of it.
        """
        self._passes.check_no_pass("save_persistables")
        if self._job.author.rank == 0:  # all workers have the same ones
            self.send_changes()

    @override
    def remove(self, table: SparseTable, ids: NDArray[np.int64]) -> int:
        """Remove rows between two passes; a removal that a former incarnation made is left out.

        Raises:
            PassOpenError: during a pass.
        """
        self._passes.check_no_pass("remove_rows")
        if self._passes.is_behind:
            log.info("worker.removal_skipped", extra={"table": table.name})
            return 0
        return super().remove(table, ids)

    @override
    def write(
        self, table: SparseTable, ids: NDArray[np.int64], values: NDArray[np.float32]
    ) -> None:
        """Write rows between two passes; a write that a former incarnation made is left out.

        Raises:
            PassOpenError: during a pass.
        """
        self._passes.check_no_pass("a write of rows")
        if self._passes.is_behind:
            log.info("worker.write_skipped", extra={"table": table.name})
            return
        super().write(table, ids, values)

    @override
    def evictable(
        self, table: SparseTable, as_of: AsOf, selection: Selection
    ) -> NDArray[np.int64]:
        """Return the ids of rows that are to go, between two passes.

        Raises:
            PassOpenError: during a pass.
        """
        self._passes.check_no_pass("shrink")
        return super().evictable(table, as_of, selection)

    @override
    def finish(self) -> None:
        """End as every served mode, once no worker trains any more: each has others' rows."""
        self._passes.check_no_pass("finish_training")
        if self._job.worker_num > 1:
            alongside = DevicePasses(self._passes, device=self._passes.device)
            while alongside.go_along():
                pass
        super().finish()

    @override
    def depart(self) -> None:
        """Leave; of a pass that is open nothing is kept."""
        self._passes.abandon()
        self._passes.release()
        self._passes.close()
        super().depart()
