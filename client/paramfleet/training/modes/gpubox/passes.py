"""The passes of one worker: their rows, their steps, and what is written back of them."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet.tables.dense import SetValues
from paramfleet.tables.device.dense import DenseOnDevice
from paramfleet.tables.device.shared import SharedSource
from paramfleet.tables.device.source import DeviceSource
from paramfleet.tables.device.table import DeviceRows
from paramfleet.tables.sparse import RowSource, SparseTable
from paramfleet.training.job import Job
from paramfleet.training.modes.base import ModelTables, learning_rate
from paramfleet.training.modes.gpubox.served_rows import DenseWrite, RowsWrite, ServedRows
from paramfleet.training.modes.gpubox.wire import DenseNumbers
from paramfleet.training.passes.backing import PassBacking, PassOpenError, call_of
from paramfleet.transport.device_group import GROUP_LOST, DeviceGroup, GroupLostError
from paramfleet_shared.errors import ContractError, FleetError, IntegrityError
from paramfleet_shared.tables.rules.record import Moment
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec

__all__ = [
    "LookupNotSaidError",
    "NoPassError",
    "PassUncertainError",
    "ServedPasses",
    "StepTakenError",
]

log = logging.getLogger(__name__)


class NoPassError(ContractError):
    """gpubox: something was to be trained outside of a pass."""

    code = "contract.no_pass"
    what: str
    sentence = (
        "{what} outside of a pass that trains: in gpubox mode train batches inside "
        "fleet.device_pass(loader, model), and begin the pass after model.train(), with "
        "gradients enabled"
    )


class LookupNotSaidError(ContractError):
    """A pass is trained, and nobody said that its batches look up a table."""

    code = "contract.lookup_not_said"
    table: str
    sentence = (
        "table {table!r} is looked up in training, and the pass has no ids of it: ids= of "
        "fleet.device_pass must return the ids of all modules, or forward= must call all "
        "modules"
    )


class PassUncertainError(IntegrityError):
    """Whether the pservers have a pass isn't known, so nothing goes on here."""

    code = "integrity.pass_uncertain"
    number: int
    function: str

    @override
    def describe(self) -> str:
        return (
            f"{call_of(self.function)}: the commit of pass {self.number} failed, and it isn't "
            "known whether all pservers have the pass: end this worker and start it again "
            "under its rank, so that it reads this from the pservers, or start the job again "
            "from a checkpoint"
        )


_WRITE_BACK = "the write-back of a pass"
_COMMIT = "the commit of a pass"
_EVICTION = "the eviction of rows behind a pass"

_NOT_KNOWN = "whether the pservers have the pass isn't known: start again from a checkpoint"


_OUTCOMES = {
    _WRITE_BACK: GROUP_LOST,
    _COMMIT: _NOT_KNOWN,
    _EVICTION: "the pservers have the pass, and rows that were to go may be there",
}
"""What is known where another worker has failed."""


class StepTakenError(ContractError):
    """Several workers train a pass together, and a batch was to have a second step."""

    code = "contract.step_taken"
    workers: int
    sentence = (
        "a second step in one batch: {workers} workers train a pass together, so each takes "
        "one step per batch"
    )


class ServedPasses(PassBacking):
    """Passes with rows on a device, of pservers that hold all rows.

    Rows and dense tables are stepped by the rules of the pservers, with their arithmetic.

    Args:
        job: The worker's connections.
        specs: All tables of the job.
        tables: The same, with the groups of the optimizer.
        beneath: What looks up rows that no pass has.
        refresh: Installs the pservers' dense parameters.
        send_changes: Gives the pservers dense values that the program has changed itself.
    """

    only_in_passes = True

    def __init__(
        self,
        job: Job,
        specs: list[TableSpec],
        tables: ModelTables,
        beneath: RowSource,
        refresh: Callable[[], None],
        send_changes: Callable[[], None],
    ) -> None:
        self.sums = False
        """Whether a step's gradient is the sum of the workers', and not their mean."""
        self._refresh = refresh
        self._send_changes = send_changes
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
        self._group: DeviceGroup | None = None
        """All workers, if there are several."""
        self._is_stepped = False
        """Whether the batch has had its step."""
        self._is_half_stepped = False
        """Whether a step has begun and not ended."""
        self._written = (0, 0)
        """Steps that tables had taken before and after the pass that was written last."""
        self._uncertain = 0
        """The number of a pass that pservers may have or not; 0 for none."""
        self._kept: dict[str, DeviceSource] = {}
        """Rows that are on the device since the last passes."""
        self._updates: dict[str, int] = {}
        """Steps of each table's optimizer when the pass began."""
        self._steps: dict[str, int] = {}
        """Steps of each in the pass: those for which some worker had a gradient of it."""
        self._free_rows: dict[str, NDArray[np.int64]] = {}
        """Rows that this worker may still give to ids, by shard: of tables where that is
        limited, its part of what is left."""
        self.device = torch.device("cpu")
        """Where rows of passes were last."""
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
        if self._uncertain:
            raise PassUncertainError(number=self._uncertain, function=function)

    @property
    def is_trained(self) -> bool:
        """Whether a pass is open that trains."""
        return self.is_open and self._trains and not self.is_repeated

    @property
    @override
    def is_behind(self) -> bool:
        """Whether a former incarnation has trained passes that aren't begun again as yet."""
        return self._num_begun < self._served.num_passes

    @override
    def prepare(self, device: torch.device) -> None:
        wait, self.device = self._job.communicator.wait, device
        if self._job.worker_num > 1 and self._group is None:
            self._group = self._form_group(device)
        if self._job.author.rank == 0:
            self._send_changes()
        if self._group is not None:
            self._group.gather([0.0])  # rows that one has removed are gone for all
        if not self._look():
            self._kept = {}
        self._dense = []
        for block, _ in self._tables.dense:
            on_device = DenseOnDevice(block, self._specs[block.name], device=device)
            read = wait(self._served.read_dense(block.name))
            on_device.missed = read.missed
            on_device.take(read.numbers.values, read.numbers.states, is_stepped=read.is_stepped)
            self._dense.append(on_device)

    def _look(self) -> bool:
        """Learn how far all tables have come; return whether that was known.

        Rows of a device are those of the pservers then.
        """
        is_known = self._job.communicator.wait(self._served.look())
        rank, size = self._job.author.rank, self._job.worker_num
        self._free_rows = {
            name: each // size + (rank < each % size)
            for name, each in self._served.free_rows.items()
        }
        self._say_steps()
        return is_known

    def _say_steps(self) -> None:
        """Let tables know how many steps they have taken, those of other processes included."""
        for table, _ in self._tables.sparse:
            table.step = max(self._served.updates.values())

    @override
    def free_rows(self, table: str) -> NDArray[np.int64] | None:
        return self._free_rows.get(table)

    def _form_group(self, device: torch.device) -> DeviceGroup:
        """Return this worker among all of the job.

        Raises:
            GroupLostError: if the others don't come.
        """
        communicator, author = self._job.communicator, self._job.author
        own = f"{author.incarnation}-{device.type}"
        said = communicator.wait(communicator.session.gather("fleet.devices", own.encode()))
        return DeviceGroup(
            communicator=communicator,
            name="devices/" + b".".join(said).decode(),
            rank=author.rank,
            size=self._job.worker_num,
            host=self._job.host,
            device=device,
            timeout_s=self._job.pservers.step_timeout_s,
            clock=communicator.clock,
        )

    @override
    def kept(self, device: torch.device) -> dict[str, DeviceSource]:
        kept, self._kept = self._kept, {}
        for name, source in kept.items():
            source.rows.limit(self.free_rows(name))
        return kept if all(each.rows.device == device for each in kept.values()) else {}

    @override
    def keep(self, sources: Mapping[str, DeviceSource]) -> None:
        if self._group is not None or self._job.worker_num == 1:
            self._kept = dict(sources)

    @property
    @override
    def group(self) -> DeviceGroup | None:
        return self._group

    @override
    def open(self, *, trains: bool) -> bool:
        self._num_begun += trains
        self.is_repeated = trains and self._num_begun <= self._served.num_passes
        self.is_open, self._trains, self._is_stepped = True, trains, False
        self._num_steps, self._updates = 0, self._served.updates
        self._steps = dict.fromkeys(self._updates, 0)
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

    def check_step(self) -> None:
        """Pass if a step may be taken now.

        Raises:
            NoPassError: if no pass is open, or one that doesn't train.
            StepTakenError: if a batch of several workers has had its step.
        """
        if not (self.is_open and self._trains):
            raise NoPassError(what="a step")
        if self._group is not None and self._is_stepped:
            raise StepTakenError(workers=self._group.size)

    def train_by(self, rules: Mapping[str, OptimizerSpec]) -> None:
        """Step from now on with the numbers of these rules, by table."""
        for name, source in self._sources.items():
            source.rows.train_by(rules[name])
        for dense in self._dense:
            dense.train_by(rules[dense.spec.name])

    def step(self, *, examples: int) -> None:
        """Step rows and dense tables by the gradients that are pending.

        Args:
            examples: Of this worker's batch: several workers weigh their gradients by it.
        """
        self._is_half_stepped = True  # until it is whole
        if self.is_repeated:
            self._num_steps += 1
        elif self._group is None:
            self._step_alone()
        else:
            self._step_together(self._group, examples)
        self._is_half_stepped = False

    def skip(self) -> None:
        """Leave a batch out; several workers go on together."""
        self._is_half_stepped = True  # until it is whole
        if self._group is not None and not self.is_repeated:
            self._step_together(self._group, None)
        self._is_half_stepped = False

    @override
    def end_batch(self) -> None:
        if self._group is not None and self._trains and not self._is_stepped:
            self._step_together(self._group, None)
        self._is_stepped = False

    def _step_alone(self) -> None:
        for table, group in self._tables.sparse:
            held = table.held()
            if held is not None:
                ids, grads = held
                moment = self._moment_of_rows(table, group)
                self._sources[table.name].step(ids, grads, moment)
            self._steps[table.name] += table.has_gradient
        for (_, group), dense in zip(self._tables.dense, self._dense, strict=True):
            changes, spans = dense.block.changes(), dense.block.with_gradients()
            if changes is not None:
                dense.set_some(changes)
            elif spans == ():
                continue
            dense.step(self._moment_of_dense(dense, group), spans)
            self._steps[dense.spec.name] += spans != ()
        self._num_steps += 1

    def _step_together(self, group: DeviceGroup, examples: int | None) -> None:
        """Take part in a step of all workers; None of examples if this one has no gradients."""
        self._is_stepped = True
        flags = self._flags(is_out=examples is None)
        with self._job.times.during("barrier"):
            said = group.gather([examples or 0, examples is not None, *flags])
        total = sum(count for count, _, *_ in said)
        if not any(steps for _, steps, *_ in said):
            return
        flags = [any(each) for each in zip(*(flags for _, _, *flags in said), strict=True)]
        share = (examples or 0) / total if total else 0.0
        if self.sums:
            share = float(bool(examples))
        with self._job.times.during("push"):
            for table, options in self._tables.sparse:
                source = self._sources[table.name]
                assert isinstance(source, SharedSource), "made for several workers"
                held = None if examples is None else table.held()
                moment = self._moment_of_rows(table, options)
                source.step_together(held, moment, share=share)
                self._steps[table.name] += flags.pop(0)
            for (_, options), dense in zip(self._tables.dense, self._dense, strict=True):
                if is_set := flags.pop(0):
                    self._set_together(group, dense)
                spans = dense.block.spans_of([flags.pop(0) for _ in dense.block.parameters])
                if spans == () and not is_set:
                    continue
                moment = self._moment_of_dense(dense, options)
                combined = partial(_total, group, None if examples is None else share)
                dense.step(moment, spans, combined)
                self._steps[dense.spec.name] += spans != ()
        self._num_steps += 1

    def _flags(self, *, is_out: bool) -> list[bool]:
        """Return what this worker says of a step to the others.

        Whether it has a gradient of each table of rows, and of each dense table whether its
        program has changed values, and whether it has a gradient of each parameter.

        Args:
            is_out: Whether it has no part in the step.
        """
        flags = [table.has_gradient and not is_out for table, _ in self._tables.sparse]
        for block, _ in self._tables.dense:
            flags.append(block.changes() is not None)
            flags += [each.grad is not None and not is_out for each in block.parameters]
        return flags

    def _set_together(self, group: DeviceGroup, dense: DenseOnDevice) -> None:
        """Set the values that programs have changed: the lowest rank's count."""
        changes, size = dense.block.changes(), dense.spec.size
        for rank in reversed(range(group.size)):
            own = np.zeros((2, size), np.float32)
            if changes is not None and rank == group.rank:
                own[0, changes.places], own[1, changes.places] = 1, changes.values
            total = group.sum(torch.from_numpy(own).view(-1)).view(2, size).cpu().numpy()
            places = np.flatnonzero(total[0])
            dense.set_some(SetValues(places, total[1, places]))

    def _moment_of_rows(self, table: SparseTable, options: dict[str, Any]) -> Moment:
        moment = self._moment(table.name, learning_rate(options), now=table.now)
        if table.kept_as.tracks == "step":  # which former incarnations of this worker took, too
            return moment._replace(now=max(self._updates.values()) + self._num_steps + 1)
        return moment

    def _moment_of_dense(self, dense: DenseOnDevice, options: dict[str, Any]) -> Moment:
        moment = self._moment(dense.spec.name, learning_rate(options))
        return moment._replace(first=not dense.is_stepped)

    def _moment(self, table: str, lr: float, *, now: int = 0) -> Moment:
        number = self._updates[table] + self._steps[table]
        return Moment(lr, number + 1, number == 0, now)

    @override
    def commit(self) -> int:
        if not self.is_open:
            return 0
        if self._is_half_stepped:
            log.warning("worker.pass_dropped", extra={"reason": "a step of it failed half way"})
            self.abandon()
            return 0
        written = 0
        if self._trains and not self.is_repeated:
            try:
                written = self._write()
            except BaseException as error:
                log.warning("worker.pass_not_written", extra={"reason": str(error)})
                self.abandon()
                raise
        self.is_open = self.is_repeated = False
        return written

    def _write(self) -> int:
        """Write the pass back; return how many rows were stepped."""
        rows = {
            name: RowsWrite(source.rows.stepped(), source.rows.came())
            for name, source in self._sources.items()
        }
        dense = [
            DenseWrite(
                spec=each.spec,
                numbers=DenseNumbers(*each.numbers()),
                is_stepped=each.is_stepped,
                missed=each.missed,
            )
            for each in self._dense
        ]
        with self._job.times.during("push"):
            self._write_rows(rows, dense)
        for source in self._sources.values():
            source.rows.note_taken()
        return sum(len(each.stepped.ids) for each in rows.values())

    def _write_rows(self, rows: Mapping[str, RowsWrite], dense: Sequence[DenseWrite]) -> None:
        """Prepare everywhere, and then commit.

        The worker of rank 0 writes dense tables, which all have, and commits for all.
        """
        wait, served, rank = self._job.communicator.wait, self._served, self._job.author.rank
        error: BaseException | None = None
        counts = [0] * self._job.placement.num_servers
        try:
            counts = wait(served.prepare(rows, dense if rank == 0 else (), steps=self._steps))
        except BaseException as failure:  # noqa: BLE001 - the others must not wait
            error = failure
        of_workers = self._agree(error, counts, _WRITE_BACK)
        self._uncertain = served.num_passes + 1  # until all pservers are known to have it
        try:
            if rank == 0:
                wait(served.commit(of_workers))
        except BaseException as failure:  # noqa: BLE001 - the others must not wait
            error = failure
        self._agree(error, [], _COMMIT)
        served.note_committed(steps=self._steps)
        self._uncertain = 0
        before = max(self._updates.values())
        self._written = (before, before + self._num_steps)
        self._say_steps()

    def _agree(
        self, error: BaseException | None, numbers: Sequence[int], operation: str
    ) -> list[list[int]]:
        """Return what each worker brings, by rank; raise where one has failed.

        Raises:
            GroupLostError: if another one has.
        """
        said: list[list[float]] = [[error is None, *numbers]]
        if self._group is not None:
            said = self._group.gather(said[0])
        failed = [rank for rank, (is_well, *_) in enumerate(said) if not is_well]
        if failed and operation == _WRITE_BACK:
            is_aborted = self._job.communicator.wait(self._served.abort())
            self._uncertain = 0 if is_aborted else self._served.num_passes + 1
        if error is not None:
            raise error
        if failed and self._group is not None:
            raise GroupLostError(
                rank=self._group.rank,
                workers=self._group.size,
                operation=operation,
                reason=f"it failed in worker {failed[0]}, which says why",
                outcome=_OUTCOMES[operation],
            )
        return [[int(number) for number in each[1:]] for each in said]

    @override
    def is_eviction_due(self) -> bool:
        """Return what worker 0 finds, to all of them.

        Raises:
            GroupLostError: if it failed to look.
        """
        (before, after), self._written = self._written, (0, 0)
        error, is_due = None, False
        try:
            if self._job.author.rank == 0:
                is_due = self.eviction.find_due(before, after)
        except BaseException as failure:  # noqa: BLE001 - the others must not wait
            error = failure
        return bool(self._agree(error, [is_due], _EVICTION)[0][0])

    @override
    def evict(self) -> None:
        """Let worker 0 remove rows, and the others wait for it.

        Raises:
            GroupLostError: if it failed to.
        """
        error: BaseException | None = None
        try:
            if self._job.author.rank == 0:
                self.eviction.evict()
        except BaseException as failure:  # noqa: BLE001 - the others must not wait
            error = failure
        self._agree(error, [], _EVICTION)
        self._look()

    @override
    def abandon(self) -> None:
        """Keep nothing of the pass: the pservers have nothing of it, either."""
        if not self.is_open:
            return
        if self._trains:
            self._num_begun -= 1
        self.is_open = self.is_repeated = self._is_half_stepped = False
        self.close()
        try:
            self._refresh()  # the model's dense layers go with the pservers' rows again
        except FleetError as error:  # why the pass failed is on its way
            log.warning("worker.dense_of_failed_pass", extra={"reason": str(error)})

    def close(self) -> None:
        """Leave the group of the workers: others that wait for this one learn it."""
        self._kept = {}
        if self._group is not None:
            self._group.close()
            self._group = None

    @override
    def release(self) -> None:
        self._sources = {}
        for table, _ in self._tables.sparse:
            table.bind(self._beneath)


def _total(group: DeviceGroup, share: float | None, grads: torch.Tensor) -> torch.Tensor:
    """Return the sum of all workers' gradients; None brings nothing, whatever is pending."""
    return group.sum(torch.zeros_like(grads) if share is None else grads * share)
