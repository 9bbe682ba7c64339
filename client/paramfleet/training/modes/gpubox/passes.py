"""The passes of one worker: their rows, their steps, and what is written back of them."""

import logging
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet.tables.device.dense import DenseOnDevice
from paramfleet.tables.device.source import DeviceSource
from paramfleet.tables.device.table import DeviceRows
from paramfleet.tables.sparse import RowSource
from paramfleet.training.job import Job
from paramfleet.training.modes.backing import PassBacking, PassOpenError, WrittenBack
from paramfleet.training.modes.base import ModelTables, learning_rate
from paramfleet.training.modes.gpubox.served_rows import DenseWrite, ServedRows
from paramfleet.training.modes.gpubox.wire import DenseNumbers
from paramfleet_shared.errors import ContractError
from paramfleet_shared.tables.rules.record import Moment
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["NoPassError", "ServedPasses"]

log = logging.getLogger(__name__)


class NoPassError(ContractError):
    """gpubox: something was to be trained outside of a pass."""

    code = "contract.no_pass"
    what: str
    sentence = (
        "{what} outside of a pass that trains: in gpubox mode batches are trained inside of "
        "fleet.device_pass(loader, model), which begins while the model is in training mode"
    )


class ServedPasses(PassBacking):
    """Passes with rows on a device, of pservers that hold all rows.

    Rows and dense tables are stepped by the rules of the pservers, with their arithmetic.

    Args:
        job: The worker's connections.
        specs: All tables of the job.
        tables: The same, with the groups of the optimizer.
        beneath: What looks up rows that no pass has.
    """

    only_in_passes = True

    def __init__(
        self, job: Job, specs: list[TableSpec], tables: ModelTables, beneath: RowSource
    ) -> None:
        self._job = job
        self._specs = {spec.name: spec for spec in specs}
        self._tables = tables
        self._beneath = beneath
        self._served = ServedRows(job, specs)
        self._dense: list[DenseOnDevice] = []
        self._sources: dict[str, DeviceSource] = {}
        self._num_begun = 0
        """Passes that train, and that the script has begun: those too that were skipped."""
        self._trains = False
        self._num_steps = 0
        self._updates: dict[str, int] = {}
        """Steps of each table's optimizer when the pass began."""
        self.is_open = False
        self.is_repeated = False
        """Whether the pass that is open was trained by a former incarnation."""

    def resolve(self) -> None:
        """End what a former incarnation left; raises as ``ServedRows.resolve``."""
        self._job.communicator.wait(self._served.resolve())
        if self._served.num_passes:
            log.info("worker.passes_done", extra={"passes": self._served.num_passes})

    @override
    def specs(self) -> dict[str, TableSpec]:
        return {name: spec for name, spec in self._specs.items() if spec.kind == "sparse"}

    @override
    def beneath(self, table: str) -> RowSource:
        return self._beneath

    @override
    def check_no_pass(self, function: str) -> None:
        if self.is_open:
            raise PassOpenError(function=function)

    @override
    def prepare(self, device: torch.device) -> None:
        wait = self._job.communicator.wait
        wait(self._served.look())
        self._dense = []
        for block, _ in self._tables.dense:
            on_device = DenseOnDevice(block, self._specs[block.name], device=device)
            numbers, is_stepped = wait(self._served.read_dense(block.name))
            on_device.take(numbers.values, numbers.states, is_stepped=is_stepped)
            self._dense.append(on_device)

    @override
    def open(self, *, trains: bool) -> bool:
        self._num_begun += trains
        self.is_repeated = trains and self._num_begun <= self._served.num_passes
        self.is_open, self._trains = True, trains
        self._num_steps, self._updates = 0, self._served.updates
        if self.is_repeated:
            log.info("worker.pass_skipped", extra={"number": self._num_begun})
        return not self.is_repeated

    @override
    def read(self, wanted: Mapping[str, NDArray[np.int64]]) -> dict[str, DeviceRows]:
        submit = self._job.communicator.submit
        asked = {
            name: submit(self._served.read_rows(name, ids)) for name, ids in wanted.items()
        }
        return {name: rows.result() for name, rows in asked.items()}

    @override
    def attach(self, sources: Mapping[str, DeviceSource]) -> None:
        self._sources = dict(sources)
        for table, _ in self._tables.sparse:
            if table.name in self._sources:
                table.bind(self._sources[table.name])

    def step(self) -> None:
        """Step rows and dense tables by the gradients that are pending.

        Raises:
            NoPassError: if no pass is open, or one that doesn't train.
        """
        if not (self.is_open and self._trains):
            raise NoPassError(what="a step")
        if not self.is_repeated:
            self._step_rows()
            self._step_dense()
        self._num_steps += 1

    def _step_rows(self) -> None:
        for table, group in self._tables.sparse:
            held = table.held()
            if held is not None:
                ids, grads = held
                moment = self._moment(table.name, learning_rate(group))
                self._sources[table.name].step(ids, grads, moment)

    def _step_dense(self) -> None:
        for (_, group), dense in zip(self._tables.dense, self._dense, strict=True):
            moment = self._moment(dense.spec.name, learning_rate(group))
            dense.step(moment._replace(first=not dense.is_stepped))

    def _moment(self, table: str, lr: float) -> Moment:
        number = self._updates[table] + self._num_steps
        return Moment(lr, number + 1, number == 0)

    @override
    def commit(self) -> WrittenBack:
        if not self.is_open:
            return WrittenBack()
        written = WrittenBack()
        if self._num_steps and not self.is_repeated:
            written = self._write()
        elif self._trains and not self.is_repeated:
            self._num_begun -= 1  # nothing was written: it doesn't count
        self.is_open = self.is_repeated = False
        return written

    def _write(self) -> WrittenBack:
        rows = {name: source.rows.stepped() for name, source in self._sources.items()}
        dense = [
            DenseWrite(
                spec=each.spec,
                numbers=DenseNumbers(*each.numbers()),
                is_stepped=each.is_stepped,
            )
            for each in self._dense
        ]
        with self._job.times.during("push"):
            num_bytes = self._job.communicator.wait(
                self._served.write(rows, dense, steps=self._num_steps)
            )
        for source in self._sources.values():
            source.rows.note_taken()
        num_rows = sum(len(each.ids) for each in rows.values())
        return WrittenBack(rows=num_rows, bytes=num_bytes)

    @override
    def abandon(self) -> None:
        """Keep nothing of the pass: the pservers have nothing of it, either."""
        if not self.is_open:
            return
        if self._trains:
            self._num_begun -= 1
        self.is_open = self.is_repeated = False

    @override
    def release(self) -> None:
        self._sources = {}
        for table, _ in self._tables.sparse:
            table.bind(self._beneath)
