"""sync: a step is one step of the whole job, run by the pservers.

A step is one request to each pserver: it pushes the gradients, and is answered with the new
dense values, and the rows of the next batch if that is known, once every worker's push is
applied.
"""

import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet.config.errors import CallOrderError
from paramfleet.model_state.batch_norm import share_statistics
from paramfleet.tables.sparse import SparseTable
from paramfleet.training.job import dense_plan, fetch_dense, with_places
from paramfleet.training.modes.gradients import StepGradients
from paramfleet.training.modes.prefetching.ahead import Found, Wanted
from paramfleet.training.modes.served import ServedMode
from paramfleet.training.modes.small_tables import MAX_BYTES, SmallTables
from paramfleet.training.stepping.norms import MergedNorms
from paramfleet.training.stepping.others import OthersSteps
from paramfleet.training.stepping.reductions import ReductionWatch, check_sums, watch_losses
from paramfleet.training.stepping.totals import StepTotals, ask_total
from paramfleet.transport.keeping import State
from paramfleet.transport.requests import ReadPlan, Write
from paramfleet_shared.errors import ContractError, FleetError, UnavailableError
from paramfleet_shared.errors.served import (
    KnownIdsGoneError,
    PulledIdsGoneError,
    StepBegunError,
    StepIncompleteError,
    StepPassedError,
)
from paramfleet_shared.net.wire.identity import NORMS
from paramfleet_shared.net.wire.message import Message

__all__ = [
    "RemovalNotSharedError",
    "RowsNotWrittenError",
    "SyncMode",
    "WriteNotSharedError",
]

log = logging.getLogger(__name__)

UNDURABLE_STEPS = 2
"""Steps whose pushes may not be durable yet, where workers return: pservers keep as many older
versions of the values, for a worker that takes them again."""


class RemovalNotSharedError(ContractError):
    """Not every worker removes rows of a table between the same two steps; none was removed."""

    code = "contract.removal_not_shared"
    table: str
    step: int
    present: int
    workers: int
    others: list[str]
    """Tables that other workers remove rows of or write to."""

    @override
    def describe(self) -> str:
        names = ", ".join(map(repr, self.others))
        instead = f"others changed rows of {names}" if names else "another took the step"
        return (
            f"fleet.remove_rows({self.table!r}) before step {self.step}: {self.present} of "
            f"{self.workers} workers called it, and {instead}: in sync every worker calls it "
            "between the same two steps, for the same tables in the same order, perhaps "
            "without ids; nothing was removed"
        )


class WriteNotSharedError(ContractError):
    """Not every worker writes rows of a table between the same two steps; none was written."""

    code = "contract.write_not_shared"
    table: str
    step: int
    present: int
    workers: int
    others: list[str]
    """Tables that other workers write to or remove rows of."""

    @override
    def describe(self) -> str:
        names = ", ".join(map(repr, self.others))
        instead = f"others changed rows of {names}" if names else "another took the step"
        return (
            f"{self.present} of {self.workers} workers wrote to the weight of table "
            f"{self.table!r} before step {self.step}, and {instead}: in sync every worker "
            "writes between the same two steps, to the same tables in the same order; nothing "
            "was written"
        )


class RowsNotWrittenError(UnavailableError):
    """The worker whose values count didn't write all rows; some of them may be written."""

    code = "unavailable.rows_not_written"
    table: str
    rank: int
    sentence = (
        "worker {rank} failed or died while it wrote rows of table {table!r}, and its log says "
        "why; some of the rows may be written: load a checkpoint, or repeat the write in every "
        "worker"
    )


class SyncMode(ServedMode):
    """Every step is one step of the whole job: equal to one process with the whole batch."""

    in_step = True
    _num_row_calls = 0
    """Removals and writes of rows since the last step."""
    _totals: StepTotals | None = None
    _watch: ReductionWatch | None = None
    """Looks at the losses until a step is taken with a batch."""

    @override
    def start(self) -> None:
        """Start as every served mode; from now on this thread makes its small calls itself.

        Workers share batch statistics if that is asked for.

        Raises:
            CallOrderError: if it is, and there is no model.
            StrategyError: if one of the model's layers can't, or if losses are sums and an
                accessor makes sums of means.
        """
        if self._sums:
            check_sums([table for table, _ in self._tables.sparse])
        if self._mode.sync_batch_norm and self._job.worker_num > 1:
            self._share_statistics()
        session, shrinks = self._job.communicator.session, self._shrinks
        self._is_exact = session.returning
        if shrinks:
            session.may_shrink()
        if session.returning:
            self._job.pservers.outbox.max_entries = UNDURABLE_STEPS
        super().start()
        self._is_exact &= not self._job.keeper.has_left
        self.begins_with = self._step
        if shrinks:
            self._confirmed = self._step
        if self._is_exact and self._step:  # others may have taken this step
            values = self._job.communicator.wait(
                fetch_dense(self._job, self._blocks, min_step=self._step, ask=self._pull)
            )
            self._install(values)
        self._plan_dense()
        self._job.communicator.wait(self._open_direct())
        if self._job.worker_num > 1:
            self.others = OthersSteps(self._job, step=lambda: self._step)
            rows = [table for table, _ in self._tables.sparse]
            dense = [block for block, _ in self._tables.dense]
            self.norms = MergedNorms(self._job, rows, dense, step=lambda: self._step)
        self._watch = watch_losses(self._job, self._mode.loss_reduction)

    def _plan_dense(self) -> None:
        """Plan what each step is answered with."""
        self._dense = dense_plan(self._job, self._blocks, wire=self._wire)
        # Narrow rows are named by their pull when they are pushed, so each forward has its own.
        max_bytes = MAX_BYTES if self._wire == "float32" else 0
        self._small = SmallTables(
            self._dense,
            self._job.placement,
            max_bytes=max_bytes,
            numbers=self._outgoing.numbers,
        )

    @override
    def _wake(self) -> bool:
        is_other = super()._wake()
        if is_other:
            self._plan_dense()
        return is_other

    @override
    def take_others_step(self) -> None:
        self.ahead.forget()  # rows that came for a batch of this step
        self.skip()

    @override
    def _find(self, wanted: Sequence[Wanted]) -> Found:
        """Take rows that came with the last step, if all did; else pull them."""
        found = self._small.take(wanted, step=self._step)
        if found is None:
            found = super()._find(wanted)
            self._small.learn(wanted)
        return found

    @override
    def reload(self, *, workers: int) -> None:
        """Take the servers' values as they are now."""
        self._small.forget()
        super().reload(workers=workers)

    @override
    def remove(self, table: SparseTable, ids: NDArray[np.int64]) -> int:
        """Remove the rows of all workers' ids; all call it between the same two steps.

        No worker goes on with rows that came before: it asks for them again.

        Raises:
            RemovalNotSharedError: if another worker has taken its step instead, or removes
                rows of another table.
            TotalIncompleteError: if another worker doesn't come in time.
        """
        self._begin_together(table, "remove")
        num = super().remove(table, ids)
        ended = self._end_together(num)
        return int(ended)

    @override
    def write(
        self, table: SparseTable, ids: NDArray[np.int64], values: NDArray[np.float32]
    ) -> None:
        """Write the rows of the lowest rank; all call it between the same two steps.

        No worker goes on before they are written, nor with rows that came before.

        Raises:
            WriteNotSharedError: if another worker has taken its step instead, or changes rows
                of another table.
            RowsNotWrittenError: if the worker of the lowest rank could not write them.
            TotalIncompleteError: if another worker doesn't come in time.
        """
        writer = self._begin_together(table, "write")
        failure: FleetError | None = None
        if writer == self._job.author.rank:
            try:
                super().write(table, ids, values)
            except (StepBegunError, StepPassedError) as error:
                # The former process of this worker wrote them before others went on.
                failure = None if self._is_repeated else error
            except FleetError as error:
                failure = error
        else:
            self._forget_rows(table, ids)
        is_written = writer == self._job.author.rank and failure is None
        num_written = self._end_together(float(is_written))
        if failure is not None:
            raise failure
        if not num_written:  # the writer has failed, or its next process doesn't repeat it
            raise RowsNotWrittenError(table=table.name, rank=writer)

    @property
    def _is_repeated(self) -> bool:
        """Whether this process repeats what a former one did before the step in progress."""
        return self._job.has_returned and self._step == self.begins_with

    def _begin_together(self, table: SparseTable, deed: Literal["remove", "write"]) -> int:
        """Return when every worker is about to do the same to a table: the lowest rank.

        Raises:
            RemovalNotSharedError: if not all are about to remove rows of the table.
            WriteNotSharedError: if not all are about to write rows of it.
        """
        self.ahead.wait()
        self._small.forget()
        tables = sorted(each.name for each, _ in self._tables.sparse)
        deeds = [(each, name) for name in ("remove", "write") for each in tables]
        own = [float(each == (table.name, deed)) for each in deeds]
        ranks = [float(rank == self._job.author.rank) for rank in range(self._job.worker_num)]
        began = self._over_workers([*own, *ranks], self._row_call)
        counts = began.tensors["sum"].astype(int)
        num_of = dict(zip(deeds, counts[: len(deeds)].tolist(), strict=True))
        present, workers = num_of.pop((table.name, deed)), int(began.fields["workers"])
        if present < workers:
            self._num_row_calls += 1  # all who came are told the same
            not_shared = RemovalNotSharedError if deed == "remove" else WriteNotSharedError
            raise not_shared(
                table=table.name,
                step=self._step,
                present=present,
                workers=workers,
                others=sorted({other for (other, _), num in num_of.items() if num}),
            )
        return int(np.flatnonzero(counts[len(deeds) :])[0])

    def _end_together(self, number: float) -> float:
        """Return the sum of all workers' numbers, when all are done."""
        ended = self._over_workers([number], f"{self._row_call} ended")
        self._num_row_calls += 1  # who failed before calls it again by the same name
        return float(ended.tensors["sum"][0])

    @property
    def _row_call(self) -> str:
        return f"rows #{self._num_row_calls + 1}"

    def _over_workers(self, numbers: Sequence[float], name: str) -> Message:
        """Return the sums of all workers' numbers, once all are there."""
        part = np.array(numbers, np.float64)
        with self._job.times.during("barrier"):
            return self._job.communicator.wait(
                ask_total(self._job, part, name=name, step=self._step)
            )

    @override
    def depart(self) -> None:
        """Push what waits, and leave; what the model computes from now on is its own."""
        if self._watch is not None:
            self._watch.end()
        self._small.forget()
        super().depart()
        self._is_exact = False  # others may train on
        if self._totals is not None:
            self._totals.is_over = True

    async def _open_direct(self) -> None:
        self._job.communicator.wakes(await self._job.pservers.open_direct())

    @override
    def _wait(
        self,
        work: Coroutine[Any, Any, list[Message]],
        *,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> list[Message]:
        """Wait for a request, and make it in this thread where that can be."""
        return self._job.communicator.wait_here(work, meanwhile=meanwhile)

    def step(self, *, examples: int) -> None:
        """Push, wait until every worker's push is applied, and take the new dense values."""
        if self._totals is not None:
            self._totals.end_step(examples=None if self._is_skipping else examples)
        if self._watch is not None and not self._is_skipping:
            self._watch.end()
            self._watch = None
        if self.norms is not None and not self._is_skipping and not self._sums:
            self.norms.check(examples)
        gradients = self._gradients(examples=examples)
        writes = self._writes(gradients)
        if self._job.pservers.divides:
            self._step_in_pieces(gradients, writes)
            return
        step, job = self._step + 1, self._job
        due, known = self.ahead.due(step=step), []
        if all(self._small.covers(asked.wanted) for asked in due):
            due, known = [], due
        plan = self._small.plan
        if due:
            rows = (read for asked in due for read in asked.plan.reads)
            plan = ReadPlan([*self._dense.reads, *rows], job.placement)
        with job.times.during("push"):
            answers = self._wait(self._take_step(gradients, writes, plan))
            found = plan.join(answers)
        self._begin_step(step)
        place = len(self._blocks)
        if not due:
            self._small.arrived(found[place:], answers, step=step)
            for asked in known:
                taken = self._small.take(asked.wanted, step=step)
                assert taken is not None, "the plan asked for all its rows"
                asked.arrived(*taken)
        for asked in due:
            stop = place + len(asked.plan.reads)
            asked.arrived(found[place:stop], answers)
            self._small.learn(asked.wanted)
            place = stop
        self._install(found[: len(self._blocks)])
        self._wake()  # what another worker has begun to train is read by the next batch

    def _step_in_pieces(self, gradients: StepGradients, writes: list[Write]) -> None:
        """Step dense tables that are larger than one request carries."""
        step, job = self._step + 1, self._job
        with job.times.during("push"):
            job.communicator.wait(self._push_alone(gradients, writes))
            del gradients, writes  # gigabytes, and as many are about to come
            self.ahead.send_next(step=step)
            fetch = fetch_dense(
                job, self._blocks, min_step=step, wire=self._wire, ask=self._pull
            )
            values = job.communicator.wait(fetch)
        self._begin_step(step)
        self._install(values)
        self._wake()

    async def _take_step(
        self, gradients: StepGradients, writes: list[Write], plan: ReadPlan
    ) -> list[Message]:
        """Push, and pull what the step makes of the tables.

        That takes two requests after all if a pserver lacks ids that weren't sent, or an
        operator holds another worker up: a push that was kept is taken once.

        Raises:
            StepIncompleteError: if another worker's push didn't come in time.
        """
        job, times = self._job, self._job.times
        fields = self._new_push(gradients)
        if self._shrinks:
            await self._push_confirmed(fields, writes, gradients)
            return await self._pull(plan, gradients.step + 1)
        if self._is_exact:
            fields["exact"] = True
        pushes = self._push_messages(fields, writes, gradients.state)
        times.switch("barrier")  # what of it wasn't one is known in the end
        began = times.seconds("barrier")
        try:
            answers, waited_s = await job.pservers.step(
                plan.behind(pushes), rows=[write.rows for write in writes]
            )
        except (PulledIdsGoneError, KnownIdsGoneError):
            self._small.note_gone()
        except StepIncompleteError as error:
            if not job.communicator.session.life.orders.paused:
                job.pservers.give_up(fields)
                raise await with_places(job, error) from error
        except BaseException:
            job.pservers.give_up(fields)
            raise
        else:
            took_s = times.seconds("barrier") - began
            times.move(max(0.0, took_s - waited_s), "barrier", "push")
            self._outgoing.confirm(plan)
            self._note_trained(answers)
            return answers
        await self._push(fields, writes, gradients.state)
        return await self._pull(plan, gradients.step + 1)

    @property
    def _shrinks(self) -> bool:
        """Whether the job goes on without a worker: then all pservers count a part, or none."""
        return self._mode.on_worker_loss == "shrink"

    async def _push_confirmed(
        self, fields: dict[str, Any], writes: list[Write], gradients: StepGradients
    ) -> None:
        """Push; the pulls that follow say to each pserver that none can lose it any more."""
        if self._shrinks:
            fields["durably"] = True
        await self._push(fields, writes, gradients.state)
        if self._shrinks:
            self._confirmed = gradients.step + 1

    async def _push_alone(self, gradients: StepGradients, writes: list[Write]) -> None:
        """Push; what the training thread waits for after that is the others' pushes."""
        await self._push_confirmed(self._new_push(gradients), writes, gradients)
        self._job.times.switch("barrier")

    def _min_step(self) -> int:
        return self._step

    def _begin_step(self, step: int) -> None:
        self._step, self._num_row_calls = step, 0
        if self.norms is not None:
            self.norms.end_step()

    @property
    def _sums(self) -> bool:
        """Whether a step's gradient is the sum of the workers', and not their mean."""
        return self._mode.loss_reduction == "sum"

    @override
    def _push_messages(
        self, fields: dict[str, Any], writes: list[Write], state: State | None
    ) -> list[Message]:
        messages = super()._push_messages(fields, writes, state)
        norms = None if self.norms is None else self.norms.named()
        if norms is None:
            return messages
        return [replace(m, tensors={**m.tensors, NORMS: norms}) for m in messages]

    @override
    def saved_at(self) -> dict[str, int]:
        return {"min_version": self._step}

    def _share_statistics(self) -> None:
        model = self._job.agreement.model
        if model is None:
            remedy = "give the model to fleet.distributed_model(): sync_batch_norm needs it"
            raise CallOrderError(function="init_worker", remedy=remedy)
        examples = self._job.examples
        self._totals = StepTotals(
            self._job,
            step=lambda: self._step,
            weight=lambda: examples.seen,
            sums=self._sums,
        )
        if not share_statistics(model, self._totals):
            log.warning("worker.no_batch_norm", extra={"reason": "the model has no BatchNorm"})
