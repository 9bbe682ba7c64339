"""What sync and async share: the pservers run the optimizer.

Both pull the rows of a batch and push one gradient a row. They differ in what a
step waits for: in sync for every worker's push of the same step, in async for
nothing but room in a bounded queue.
"""

from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet.config.strategy import TrainingMode
from paramfleet.tables.dense import DenseBlock
from paramfleet.tables.dense_parameters import named_in
from paramfleet.tables.row_store import spec_of
from paramfleet.tables.rules import (
    RuleChangedError,
    numbers_changed,
    rule_of_rows,
    server_rule,
)
from paramfleet.tables.sparse import SparseTable, nothing_pending
from paramfleet.training.evicting.removals import (
    count_rows,
    send_discount,
    send_removal,
    survey,
)
from paramfleet.training.evicting.selecting import Selection
from paramfleet.training.evicting.writes import send_first_rows, send_rows
from paramfleet.training.job import (
    Job,
    agree_on_dense,
    declare,
    fetch_dense,
    pull_dense,
    slowest_of,
    with_places,
)
from paramfleet.training.modes.base import (
    Mode,
    ModelTables,
    check_gradients,
    learning_rate,
)
from paramfleet.training.modes.gradients import StepGradients, TableGradient
from paramfleet.training.modes.outgoing import Outgoing
from paramfleet.training.modes.prefetching.ahead import Ahead, Expecting, Found, Wanted, When
from paramfleet.training.modes.prefetching.disk_rows import DiskRows, Prefetched
from paramfleet.transport.keeping import State, with_state
from paramfleet.transport.requests import (
    Read,
    ReadPlan,
    Write,
    dense_slice,
    set_tensors,
    write_messages,
)
from paramfleet_shared.errors import FleetError
from paramfleet_shared.errors.served import (
    KnownIdsGoneError,
    PulledIdsGoneError,
    StepIncompleteError,
)
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.encoding import WireDtype
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.tables.rows.evicting import AsOf

if TYPE_CHECKING:
    from paramfleet_shared.tables.spec import OptimizerSpec

__all__ = ["ServedMode"]

_NO_RULES = frozenset({"params", "lr", "initial_lr"})
"""What a group has beside the options of its rule."""


def _options_of(group: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the options that a rule is made of."""
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in group.items()
        if name not in _NO_RULES
    }


class ServedMode(Mode):
    """Pull on demand; collect gradients; describe tables to the servers."""

    _is_exact = False
    """Whether a pull is of one step's values, and of none after it."""
    _is_skipping = False
    """Whether the step that is being taken pushes nothing."""
    _confirmed: int | None = None
    """Before which step all of this worker's parts are with every pserver, if pulls say it."""

    def __init__(
        self,
        job: Job,
        mode: TrainingMode,
        optimizer: torch.optim.Optimizer,
        tables: ModelTables,
    ) -> None:
        self._job = job
        self._mode = mode
        self._tables = tables
        self._step = 0
        shards = job.placement.num_shards
        self._specs = [
            spec_of(table, rule=rule_of_rows(optimizer, group, table), num_shards=shards)
            for table, group in tables.sparse
        ] + [
            block.spec(
                server_rule(optimizer, group, sparse=False),
                num_shards=shards,
                parameters=named_in(job.agreement.model, block),
            )
            for block, group in tables.dense
        ]
        self._optimizer = optimizer
        groups = [group for _, group in (*tables.sparse, *tables.dense)]
        self._groups = list({id(group): group for group in groups}.values())
        self._checked: list[dict[str, Any]] = []
        """Options of the optimizer's groups, as they were found in order."""
        self.rules: dict[str, OptimizerSpec] = {}
        """By table, its rule with the numbers of this step."""
        self.numbers: dict[str, dict[str, Any]] = {}
        """By table, which of them differ from the declared ones."""
        self._noted = -1
        self._blocks = [block for block, _ in tables.dense if not block.is_asleep]
        for block in self._blocks:
            block.notes_changes = True
        self._asleep = [block for block, _ in tables.dense if block.is_asleep]
        """Dense tables of frozen parameters."""
        self._trained_elsewhere = set[str]()
        """Dense tables that other workers train and this one doesn't read."""
        self._wire = mode.wire_dtype
        self._outgoing = Outgoing(
            self._specs,
            job.placement,
            mode.wire_dtype,
            rank=job.author.rank,
            incarnation=job.author.incarnation,
        )
        self._disk_rows = DiskRows(job)
        self.ahead = Ahead(
            placement=job.placement,
            read=self._read,
            pull=lambda plan, step: job.communicator.submit(self._pull_ahead(plan, step)),
            step=lambda: self._step,
            when=self._when,
            expect=self._disk_rows.expect,
        )
        """Where rows of batches to come are asked for."""

    def start(self) -> None:
        """Declare the tables, and start from worker 0's dense parameters."""
        self._step = declare(self._job, self._specs, self._mode)
        for table, _ in self._tables.sparse:
            table.bind(self)
        tables = [table for table, _ in self._tables.sparse]
        first_rows = partial(send_first_rows, self._job, tables, step=self._step)
        agree_on_dense(self._job, [*self._blocks, *self._asleep], also=first_rows)

    @property
    @override
    def serving(self) -> Expecting | None:
        """Return the mode: every lookup pulls its rows."""
        return self

    @property
    def num_shards(self) -> int:
        """Return the shards of every table of the job."""
        return self._job.placement.num_shards

    @property
    def by_id(self) -> bool:
        """Return whether ids are sorted inside their shard: narrow jobs pack them."""
        return self._wire != "float32"

    def lookup(
        self,
        table: SparseTable,
        ids_U: NDArray[np.int64],
        offsets: NDArray[np.int64],
        *,
        create: bool,
    ) -> NDArray[np.float32]:
        """Pull rows, as ``RowSource`` promises."""
        with self._job.times.during("pull"):
            found = self.ahead.take(table, ids_U, create=create)
            if found is None:
                (rows,), answers = self._find([Wanted(table, RowIds(ids_U, offsets), create)])
                found = rows, answers
        rows, answers = found
        if create:
            self._note(answers)
        return rows

    def expect(self, wanted: Sequence[Wanted]) -> None:
        """Pull the rows of all lookups of the forward that begins, by one request.

        Raises:
            FleetError: if the request failed.
        """
        with self._job.times.during("pull"):
            self.ahead.begin_forward(wanted, self._find(wanted))

    def _find(self, wanted: Sequence[Wanted]) -> Found:
        """Pull rows of the step in progress, and wait for them."""
        plan = ReadPlan([self._read(each) for each in wanted], self._job.placement)
        pulling = self._pull(plan, self._min_step())
        answers = self._wait(pulling, meanwhile=partial(self._find_rests, plan))
        return plan.join(answers), answers

    def _wait(
        self, work: Coroutine[Any, Any, list[Message]], *, meanwhile: Callable[[], None]
    ) -> list[Message]:
        """Wait for a request, in the training thread."""
        return self._job.communicator.wait(work, meanwhile=meanwhile)

    def _find_rests(self, plan: ReadPlan) -> None:
        for read in plan.reads:
            self._outgoing.find_rest(read)

    @override
    def skip(self) -> None:
        """Push a step with nothing in it, so that who waits for this worker goes on."""
        self._is_skipping = True
        try:
            self.step(examples=0)
        finally:
            self._is_skipping = False

    def flush(self) -> None:
        """Return when the servers have all of this worker: pushes are there after ``step``."""
        self.send_changes()

    def reload(self, *, workers: int) -> None:
        """Rows are pulled anyway; take the dense parameters."""
        del workers  # the states are the servers'
        self.ahead.forget()
        self._job.communicator.wait(self._forget_rest())
        self.refresh()
        frozen = pull_dense(self._job, self._asleep, min_step=self._min_step())
        for block, values in zip(self._asleep, frozen, strict=True):
            block.install(values)

    @override
    def remove(self, table: SparseTable, ids: NDArray[np.int64]) -> int:
        self._forget_rows(table, ids)
        return self._job.communicator.wait(
            send_removal(self._job, table.name, ids, step=self._step)
        )

    @override
    def write(
        self, table: SparseTable, ids: NDArray[np.int64], values: NDArray[np.float32]
    ) -> None:
        self._forget_rows(table, ids)
        sending = send_rows(self._job, table, (ids, values), step=self._step)
        self._job.communicator.wait(sending)

    def _forget_rows(self, table: SparseTable, ids: NDArray[np.int64]) -> None:
        """Drop what is here of rows that change on the pservers past their optimizer."""
        self.ahead.forget()
        self._outgoing.drop_rests(table.name, ids)

    @override
    def prefetch_rows(self, table: SparseTable, ids: NDArray[np.int64]) -> Future[Prefetched]:
        return self._disk_rows.prefetch(table.name, ids)

    @override
    def discount(
        self, table: SparseTable, ids: NDArray[np.int64], amounts: NDArray[np.float32]
    ) -> None:
        sending = send_discount(self._job, table.name, ids, amounts, step=self._step)
        self._job.communicator.wait(sending)

    @override
    def evictable(
        self, table: SparseTable, as_of: AsOf, selection: Selection
    ) -> NDArray[np.int64]:
        asking = survey(self._job, table.name, as_of, selection, step=self._step)
        return self._job.communicator.wait(asking)

    @override
    def num_rows(self, table: SparseTable) -> int:
        asking = count_rows(self._job, table.name, step=self._step)
        return self._job.communicator.wait(asking)

    def finish(self) -> None:
        """Push what waits, leave so that workers with more data go on, and wait for them."""
        self.depart()
        self._job.wait_for_the_end("fleet.finish")
        self.refresh()

    def depart(self) -> None:
        """Push what waits, and leave."""
        self.ahead.forget()
        self._disk_rows.cancel()
        self.flush()
        fields = {**self._job.author.fields(), "step": self._step}
        self._job.communicator.wait(self._job.pservers.call_all("leave", fields))

    def adjust(self, mode: TrainingMode) -> None:
        """Keep to another ``max_staleness`` from the next step on."""
        self._mode = mode

    def refresh(self, *, wire: WireDtype = "float32") -> None:
        """Install the pservers' dense parameters."""
        min_step = self._min_step()
        self._install(pull_dense(self._job, self._blocks, min_step=min_step, wire=wire))

    def _read(self, wanted: Wanted) -> Read:
        """Describe one table's part of a pull."""
        table, rows, create = wanted
        if create:
            return self._outgoing.read(table.name, rows)
        # Nothing will be pushed of rows that are only looked at.
        return Read(table=table.name, rows=rows, dim=table.dim)

    async def _pull(self, plan: ReadPlan, min_step: int) -> list[Message]:
        """Pull, and once more with all ids if a pserver lacks those that aren't sent."""
        try:
            answers = await self._ask(plan, min_step)
        except (PulledIdsGoneError, KnownIdsGoneError) as gone:
            self._outgoing.note_gone(gone, plan)
            return await self._ask(plan.with_ids(), min_step)
        self._outgoing.confirm(plan)
        self._note_trained(answers)
        return answers

    def _note_trained(self, answers: Sequence[Message]) -> None:
        """Note which dense tables others train that this worker doesn't read."""
        for answer in answers:
            self._trained_elsewhere.update(answer.fields.get("unread", ()))

    def _wake(self) -> bool:
        """Begin with tables of frozen parameters that were thawed, here or by another worker.

        Returns:
            Whether there were any.
        """
        if not self._asleep:
            return False
        told = self._trained_elsewhere
        woken = [each for each in self._asleep if each.learns or each.name in told]
        for block in woken:
            fetch = fetch_dense(self._job, [block], min_step=self._min_step(), ask=self._pull)
            (values,) = self._job.communicator.wait(fetch)
            block.wake(values, installs=block.name in told)
            self._asleep.remove(block)
            self._blocks.append(block)
        return bool(woken)

    async def _ask(self, plan: ReadPlan, min_step: int) -> list[Message]:
        """Pull; wait for a step that an operator holds up.

        Raises:
            StepIncompleteError: if nobody does.
        """
        job = self._job
        while True:
            try:
                return await job.pservers.pull(
                    plan,
                    **job.author.fields(),
                    min_step=min_step,
                    version=min_step if self._is_exact else None,
                    confirms=self._confirmed,
                )
            except StepIncompleteError as error:
                if not job.communicator.session.life.orders.paused:
                    raise await with_places(job, error) from error

    async def _pull_ahead(self, plan: ReadPlan, step: int) -> list[Message]:
        """Pull rows of a batch that begins after ``step`` steps."""
        return await self._pull(plan, step)

    def _install(self, values: list[NDArray[np.float32]]) -> None:
        for block, flat in zip(self._blocks, values, strict=True):
            block.install(flat)

    async def _forget_rest(self) -> None:
        self._outgoing.forget()

    def _min_step(self) -> int:
        """Steps that must be applied before a pull is answered."""
        return 0

    def _when(self) -> When:
        """When rows of batches to come are asked for."""
        return "step"

    def _note(self, answers: Sequence[Message]) -> None:
        """Take one sample of the staleness in each step."""
        if self._noted < self._step:
            self._noted = self._step
            self._job.staleness.note(step=self._step, slowest=slowest_of(answers))

    def check_rules(self) -> None:
        """Look at the options of this step: numbers may change, what rule they are of may not.

        Raises:
            OptimizerNotServedError: if an option became such as pservers don't have.
            RuleChangedError: naming the first table that another rule would train.
            TableSpecError: if a number is outside of its rule's range.
        """
        options = [_options_of(group) for group in self._groups]
        if options == self._checked:  # most steps: what was looked at before
            return
        optimizer = self._optimizer
        rules = [rule_of_rows(optimizer, group, table) for table, group in self._tables.sparse]
        rules += [
            server_rule(optimizer, group, sparse=False) for _, group in self._tables.dense
        ]
        numbers = {}
        for spec, rule in zip(self._specs, rules, strict=True):
            if rule.rule != spec.optimizer.rule:
                raise RuleChangedError(table=spec.name, have=str(spec.optimizer), got=str(rule))
            numbers[spec.name] = numbers_changed(replace(spec, optimizer=rule), spec)
        self.rules = {spec.name: rule for spec, rule in zip(self._specs, rules, strict=True)}
        self.numbers, self._checked = numbers, options

    def _gradients(self, *, examples: int, dense: bool = True) -> StepGradients:
        """Return what this step pushes: nothing of a table without a gradient, as in torch.

        Args:
            examples: Of the step.
            dense: Whether a copy of the dense gradients is part of it.

        Raises:
            GradientError: if a gradient isn't finite.
            RuleChangedError: if an option makes another rule of a table's.
        """
        check_gradients(self._tables, step=self._step)
        self.check_rules()
        self._wake()
        parts = []
        for table, group in () if self._is_skipping else self._tables.sparse:
            if not table.has_gradient:
                continue
            batch = table.pending() or nothing_pending(table.dim, self.num_shards)
            gradient = TableGradient(
                name=table.name,
                rows=batch.rows,
                grads=batch.values,
                lr=learning_rate(group),
                now=table.now,
                numbers=self.numbers[table.name],
            )
            parts.append(gradient)
        for block, group in self._tables.dense if dense else ():
            if not block.is_asleep:
                parts += self._dense_gradient(block, learning_rate(group))
        if not dense:
            for block in self._blocks:
                block.changes()  # none can be sent
        return StepGradients(
            step=self._step,
            examples=examples,
            parts=tuple(parts),
            state=self._job.keeper.state(),
        )

    def _dense_gradient(self, block: DenseBlock, lr: float) -> list[TableGradient]:
        """Return what a step pushes of a dense table, if anything."""
        spans = () if self._is_skipping else block.with_gradients()
        changes = block.changes()
        if changes is not None:
            block.note_sent(changes)
        elif spans == ():
            return []
        grads = np.zeros(block.size, np.float32) if spans == () else block.gradients()
        return [
            TableGradient(
                name=block.name,
                rows=None,
                grads=grads,
                lr=lr,
                numbers=self.numbers[block.name],
                spans=spans,
                set_before=changes,
            )
        ]

    def send_changes(self) -> None:
        """Give the servers dense values that the program has changed since the last step.

        Raises:
            FleetError: if a pserver didn't take them.
        """
        for block in self._blocks:
            changes = block.changes()
            if changes is None:
                continue
            fields = {**self._job.author.fields(), "table": block.name, "only_if_new": False}
            placement = self._job.placement
            parts = [
                dense_slice(block.size, placement, server)
                for server in range(placement.num_servers)
            ]
            messages = [
                Message(fields=fields, tensors=set_tensors(changes, part)) for part in parts
            ]
            self._job.communicator.wait(self._job.pservers.call("assign", messages))
            block.note_sent(changes)

    def _writes(self, gradients: StepGradients) -> list[Write]:
        """Return what a step pushes, narrowed: each call takes what is left of it once."""
        return [self._outgoing.write(part) for part in gradients.parts]

    async def _push(
        self, fields: dict[str, Any], writes: list[Write], state: State | None
    ) -> None:
        """Push, and once more with all ids if a pserver doesn't keep those of a pull.

        Args:
            fields: Of every message, as ``_new_push`` makes them.
            writes: What is pushed.
            state: Where this worker is then.
        """

        def corrected(refusal: FleetError) -> list[Message] | None:
            if not isinstance(refusal, PulledIdsGoneError):
                return None
            self._outgoing.note_gone(refusal)
            with_ids = [replace(write, pulled=None) for write in writes]
            return self._push_messages(fields, with_ids, state)

        messages = self._push_messages(fields, writes, state)
        await self._job.pservers.change(
            "push", messages, corrected=corrected, rows=[write.rows for write in writes]
        )

    def _new_push(self, gradients: StepGradients) -> dict[str, Any]:
        """Return the fields of a push, with a new identity."""
        fields = {
            **self._job.author.change(),
            "step": gradients.step,
            "weight": float(gradients.examples),
        }
        if gradients.first is not None:
            fields["first"] = gradients.first
        return fields

    def _push_messages(
        self, fields: dict[str, Any], writes: list[Write], state: State | None
    ) -> list[Message]:
        messages = write_messages(writes, self._job.placement, fields, values_name="grads")
        return with_state(messages, state)
