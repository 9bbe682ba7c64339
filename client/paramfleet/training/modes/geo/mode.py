"""GEO: workers run the optimizer on replicas and exchange differences every ``k_steps``.

The exchange runs beside the training: a delta is taken where a period ends, pushed in the
background, and what others changed is taken in at the first step boundary after the answer. One
exchange is in flight at most; one that comes due meanwhile starts there. Those of the first
``fresh_steps`` are waited for where they start.
"""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet.config.strategy import TrainingMode
from paramfleet.tables.dense_parameters import named_in
from paramfleet.tables.error_feedback import sent_and_lost
from paramfleet.tables.replica import DenseReplica, RowReplica
from paramfleet.tables.row_store import RowStore, spec_of
from paramfleet.tables.sparse import SparseTable
from paramfleet.training.evicting.removals import count_rows, send_removal, survey
from paramfleet.training.evicting.selecting import Selection
from paramfleet.training.evicting.writes import send_first_rows, send_rows
from paramfleet.training.in_place import moves_in_place
from paramfleet.training.job import (
    Job,
    agree_on_dense,
    declare,
    fetch_dense,
    fetch_exchanged,
    pull_dense,
    slowest_of,
)
from paramfleet.training.loaded_states import take_saved_states
from paramfleet.training.modes.base import Mode, ModelTables, check_gradients
from paramfleet.training.modes.fresh import FreshSteps
from paramfleet.training.modes.geo.came import RowsThatCame
from paramfleet.training.modes.geo.counted import (
    CountedReplica,
    Uses,
    added_by,
    is_use,
    with_marks,
)
from paramfleet.training.modes.geo.deltas import Delta, Received, ReceivedRows, divided
from paramfleet.training.modes.geo.exchange_rows import received_ids, refused_ids, removed_ids
from paramfleet.training.modes.geo.in_place import GeoInPlace
from paramfleet.training.modes.geo.periods import Periods
from paramfleet.training.modes.geo.powers import HALF, Powers, powers_at
from paramfleet.training.modes.geo.rows import drop, pull_anew, take_lost, take_received
from paramfleet.training.modes.geo.states import GeoStates
from paramfleet.training.modes.rowstep import RowStepper, forget_states, step_rows
from paramfleet.transport.keeping import State, with_state
from paramfleet.transport.requests import Write, decoded_part, dense_slice, write_messages
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.encoding import (
    Encoded,
    WireDtype,
    encode_rows,
    narrowest,
)
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.tables.rows.evicting import AsOf
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

__all__ = ["GeoMode"]

_SUM = OptimizerSpec(rule="sum")
"""Of dense tables."""
_MESSAGE_VALUES = 1 << 23
"""Floats that one message carries of all sparse tables together, each way: 32 MiB. What is
more goes with further messages of the same exchange."""


class GeoMode(Mode):
    """Any torch optimizer runs locally; the servers add up differences."""

    def __init__(
        self,
        job: Job,
        mode: TrainingMode,
        optimizer: torch.optim.Optimizer,
        tables: ModelTables,
    ) -> None:
        self._job = job
        self._mode = mode
        self._optimizer = optimizer
        self._tables = tables
        self._blocks = [block for block, _ in tables.dense if not block.is_asleep]
        self._asleep = [block for block, _ in tables.dense if block.is_asleep]
        """Dense tables of frozen parameters."""
        self._trained_elsewhere = set[str]()
        """Dense tables that other workers train and this one doesn't receive."""
        stores = [RowStore.empty(table) for table, _ in tables.sparse]
        self._rows = {
            store.spec.name: _kind_of(store)(
                store,
                worker_num=job.worker_num,
                merge=mode.geo_merge,
                num_shards=job.placement.num_shards,
                narrows=self._wire_of(store) != "float32",
            )
            for store in stores
        }
        self._uses = {
            store.spec.name: Uses(store) for store in stores if store.spec.creates_at_push
        }
        """Of tables that count their rows or have an entry."""
        counts = {"workers": job.worker_num, "fresh_steps": mode.fresh_steps}
        self._powers = partial(powers_at, mode.geo_merge, optimizer, **counts)
        paced = mode.geo_merge == "paced"
        self._steppers = [
            RowStepper(
                optimizer, group, table, store, steps_at_once=job.worker_num, for_all=paced
            )
            for (table, group), store in zip(tables.sparse, stores, strict=True)
        ]
        self.states = GeoStates(optimizer, tables, self._steppers, workers=job.worker_num)
        """Of this worker's optimizer."""
        self._dense: dict[str, DenseReplica] = {}
        self._in_place: GeoInPlace | None = None
        """Has the dense tables if they are too large to be copied."""
        self._step = 0
        self._periods = self._periods_from(0)
        self._due = False
        self.fresh = FreshSteps(mode.fresh_steps)
        self._delta_step = 0
        """Steps taken when deltas were taken last."""
        self._acks: dict[tuple[int, str], int] = {}
        self._came = RowsThatCame()
        self._flying: Future[Received] | None = None
        self._slices = {
            block.name: [
                dense_slice(block.size, job.placement, server)
                for server in range(job.placement.num_servers)
            ]
            for block, _ in tables.dense
        }

    def start(self) -> None:
        """Start from worker 0's dense parameters, and from loaded rows if there are any."""
        shards = self._job.placement.num_shards
        specs = [
            spec_of(table, rule=added_by(table), num_shards=shards)
            for table, _ in self._tables.sparse
        ]
        model = self._job.agreement.model
        specs += [
            block.spec(_SUM, num_shards=shards, parameters=named_in(model, block))
            for block, _ in self._tables.dense
        ]
        self._step = declare(self._job, specs, self._mode)
        self._periods = self._periods_from(self._step)
        self.fresh.go_on_from(self._step)
        for table, _ in self._tables.sparse:
            table.bind(self._rows[table.name].store)
        tables = [table for table, _ in self._tables.sparse]
        first_rows = partial(send_first_rows, self._job, tables, step=self._step)
        agree_on_dense(self._job, [*self._blocks, *self._asleep], also=first_rows)
        if moves_in_place(self._job, self._blocks, self._mode.wire_dtype):
            self._in_place = GeoInPlace(self._job, self._blocks, self._mode.geo_merge)
            self._blocks = []
        for block in self._blocks:
            self._dense[block.name] = DenseReplica(
                block.values(), worker_num=self._job.worker_num, merge=self._mode.geo_merge
            )
        self._exchange_now(self._no_deltas())
        if self.own_states():
            if not self._step:  # who comes late would read states of long ago
                take_saved_states(self._job, self.states)
            self._job.answering.begin({"states": self.states.answer})

    def step(self, *, examples: int) -> None:
        """Step locally; take in what arrived; send when a period is over."""
        del examples  # every worker's optimizer has its own batch
        self._job.communicator.raise_failure()
        check_gradients(self._tables, step=self._step)
        self._wake()
        with self.states.lock:
            stepped = step_rows(self._steppers, self._optimizer)
            for stepper, slots in zip(self._steppers, stepped, strict=True):
                if slots is not None:
                    self._rows[stepper.table.name].touch(slots)
                    self.states.note(stepper, slots)
            self.states.note_step()
        self._step += 1
        self._due |= self._periods.is_due(self._step)
        if self._flying is not None and self._flying.done():
            self.wait_exchanged()
        if self._due and self._flying is None:
            self._due = False
            deltas = self._take_deltas()
            wire = self._mode.wire_dtype
            self._send([self._narrowed(d) for d in deltas] if wire != "float32" else deltas)
            if self.fresh.is_next:
                self.wait_exchanged()
        self.fresh.note_step()

    def _wake(self) -> None:
        """Begin with tables of frozen parameters that a worker has thawed."""
        told = self._trained_elsewhere
        woken = [each for each in self._asleep if each.learns or each.name in told]
        for block in woken:
            self.wait_exchanged()
            (values,) = pull_dense(self._job, [block])
            block.wake(values, installs=block.name in told)
            block.notes_changes = False  # they are differences like any others
            self._dense[block.name] = DenseReplica(
                values, worker_num=self._job.worker_num, merge=self._mode.geo_merge
            )
            self._asleep.remove(block)
            self._blocks.append(block)

    def begins_anew(self, *, kept: bool, saved: bool, served: bool) -> bool:
        """Return whether the checkpoint lacks this worker's states."""
        del served
        return kept and not saved

    def own_states(self) -> "Sequence[TableSpec]":
        """Return the tables whose states a checkpoint can hold."""
        return self.states.specs()

    def wait_exchanged(self) -> None:
        """Wait for the exchange in flight, if any, and take in what it brought.

        Raises:
            FleetError: why the exchange failed.
        """
        if self._flying is None:
            return
        received, self._flying = self._flying.result(), None
        self._take_rows(received)
        for block in self._blocks:
            if block.name in received.dense:
                replica = self._dense[block.name]
                block.install(replica.receive(block.values(), received.dense[block.name]))
        self._job.staleness.note(step=self._step, slowest=received.slowest)

    def _take_rows(self, received: Received) -> None:
        """Take in the rows that an exchange brought, once."""
        rows, received.rows = received.rows, {}
        for name, pieces in rows.items():
            replica = self._rows[name]
            take_received(replica, pieces, self.states)
            for server, came in self._came.take(name).items():
                take_lost(self._job, replica, server, came, max_rows=self._max_rows(name))

    def flush(self) -> None:
        """Exchange now: send what has moved, take in what others changed."""
        self.wait_exchanged()
        self._exchange_now(self._take_deltas())

    @override
    def end_day(self) -> None:
        """Send what was counted on this day: each exchange is of one."""
        if any(replica.store.spec.optimizer.num_counts for replica in self._rows.values()):
            self.flush()

    @override
    def takes_turn(self, number: int) -> bool:
        return number % self._job.worker_num == self._job.author.rank % self._job.worker_num

    @override
    def evictable(
        self, table: SparseTable, as_of: AsOf, selection: Selection
    ) -> NDArray[np.int64]:
        self.flush()  # rows that were seen now are worth more
        asking = survey(self._job, table.name, as_of, selection, step=self._step)
        return self._job.communicator.wait(asking)

    @override
    def num_rows(self, table: SparseTable) -> int:
        asking = count_rows(self._job, table.name, step=self._step)
        return self._job.communicator.wait(asking)

    def reload(self, *, workers: int) -> None:
        """Take the servers' values and a share of loaded states; one's own are forgotten."""
        self.wait_exchanged()
        with self.states.lock:
            blocks = [block for block, _ in self._tables.dense]
            forget_states(self._optimizer, self._steppers, blocks)
            self.states.begin(workers=workers)
        pulled = pull_dense(self._job, self._blocks)
        for block, values in zip(self._blocks, pulled, strict=True):
            block.install(values)
            self._dense[block.name].reset(values)
        frozen = pull_dense(self._job, self._asleep)
        for block, values in zip(self._asleep, frozen, strict=True):
            block.install(values)
        if self._in_place is not None:
            self._in_place.reload()
        for name, replica in self._rows.items():
            if name in self._uses:  # an id has a row where the servers say so
                drop(replica, replica.store.live_ids().copy(), self.states)
                self._uses[name].take()
            else:
                replica.forget()
        self._exchange_now(self._no_deltas())
        take_saved_states(self._job, self.states)

    @override
    def remove(self, table: SparseTable, ids: NDArray[np.int64]) -> int:
        """Remove rows, and receive what others changed: no later answer drops them again.

        Other workers drop their copies with their next exchange. Dense parameters stay as they
        are until the step: a forward that has begun keeps them for its backward.
        """
        if self._flying is not None:
            self._take_rows(self._flying.result())
        removing = send_removal(self._job, table.name, ids, step=self._step)
        num = self._job.communicator.wait(removing)
        drop(self._rows[table.name], ids, self.states)
        listening = [self._listening(name) for name in self._rows]
        exchange = self._exchange(listening, self._step, dense=False)
        self._take_rows(self._job.communicator.wait(exchange))
        return num

    @override
    def write(
        self, table: SparseTable, ids: NDArray[np.int64], values: NDArray[np.float32]
    ) -> None:
        """Write rows here and on the pservers, in place of this worker's progress of them.

        Rows that have these values here already stay as they are, with what others have made of
        them. Other workers receive the rows with their next exchange, and keep their own
        progress of them.
        """
        if self._flying is not None:
            self._take_rows(self._flying.result())
        replica = self._rows[table.name]
        differ = replica.differ(ids, values)
        rows = ids[differ], values[differ]
        self._job.communicator.wait(send_rows(self._job, table, rows, step=self._step))
        with self.states.lock:
            replica.install(*rows)

    def depart(self) -> None:
        """Send all of this worker's progress, and leave."""
        self.wait_exchanged()
        self._exchange_now(self._take_deltas(rest=True))
        fields = {**self._job.author.fields(), "step": self._step}
        self._job.communicator.wait(self._job.pservers.call_all("leave", fields))

    def adjust(self, mode: TrainingMode) -> None:
        """Exchange every other ``k_steps`` from the next step on."""
        self._mode = mode
        self._periods.adjust(mode.k_steps)

    def finish(self) -> None:
        """Exchange for the last time: all workers and servers hold the same afterwards."""
        self.wait_exchanged()
        self._exchange_now(self._take_deltas(rest=True))
        self._job.wait_for_the_end("fleet.geo_rest")
        self._exchange_now(self._no_deltas())
        if self._mode.wire_dtype != "float32":
            for name, replica in self._rows.items():
                if self._wire_of(replica.store) != "float32":
                    pull_anew(self._job, replica, max_rows=self._max_rows(name))

    def _periods_from(self, step: int) -> Periods:
        return Periods(k_steps=self._mode.k_steps, growth=self._mode.geo_growth, step=step)

    def _is_counted(self, table: str) -> bool:
        rows = self._rows.get(table)
        return rows is not None and bool(rows.store.spec.optimizer.num_counts)

    def _wire_of(self, store: RowStore) -> WireDtype:
        """Return how rows of a table travel: counts exactly."""
        if store.spec.optimizer.num_counts:
            return "float32"
        return narrowest(self._mode.wire_dtype, store.spec.dim)

    def _narrowed(self, delta: Delta) -> Delta:
        """Return a delta as it travels; what that loses of it counts as unsent again."""
        name, wire = delta.table, self._mode.wire_dtype
        if delta.rows is None:
            parts, lost = sent_and_lost(delta.values, wire, self._slices[name])
            self._dense[name].give_back(lost)
            return delta._replace(wire=wire, encoded=tuple(parts))
        replica = self._rows[name]
        wire = self._wire_of(replica.store)
        if wire == "float32":
            return delta
        rows, order = delta.rows.sorted()
        values, marks = delta.values, delta.marks
        if order is not None:
            values, marks = values[order], None if marks is None else marks[order]
        encoded, lost = sent_and_lost(values, wire)
        sent = slice(None) if marks is None else ~is_use(marks)  # others have no row
        replica.give_back(rows.ids[sent], lost[sent])
        return delta._replace(
            values=values, rows=rows, wire=wire, encoded=tuple(encoded), marks=marks
        )

    def _take_deltas(self, *, rest: bool = False) -> list[Delta]:
        """Return what this worker has to send; with ``rest``, all of it."""
        deltas = []
        num_steps = self._step - self._delta_step
        self._delta_step = self._step
        for table, _ in self._tables.sparse:
            name = table.name
            replica = self._rows[name]
            batch, marks = replica.take_rest() if rest else replica.take_delta(), None
            if name in self._uses:
                batch, marks = with_marks(batch, replica, self._uses[name])
            delta = Delta(name, batch.values, batch.rows, num_steps=num_steps, marks=marks)
            deltas.append(delta._replace(now=table.now))
        for block in self._blocks:
            dense = self._dense[block.name]
            take = dense.take_rest if rest else dense.take_delta
            values, cur = take(block.values())
            block.install(cur)
            deltas.append(Delta(block.name, values, num_steps=num_steps))
        if self._in_place is not None:
            with self._job.times.during("push"):
                powers = self._powers(step=self._step).fields(dense=True, num_steps=num_steps)
                self._in_place.exchange(powers, step=self._step, rest=rest)
        return deltas

    def _no_deltas(self) -> list[Delta]:
        """Return an exchange that only receives; what moves in place is received at once."""
        if self._in_place is not None:
            self._in_place.listen()
        listening = [self._listening(name) for name in self._rows]
        if self._job.pservers.divides:
            return listening  # and what nothing is sent of is pulled
        return listening + [
            Delta(block.name, np.zeros(block.size, np.float32)) for block in self._blocks
        ]

    def _listening(self, name: str, wire: WireDtype = "float32") -> Delta:
        dim = self._rows[name].store.spec.dim
        offsets = np.zeros(self._job.placement.num_shards + 1, np.int64)
        rows = RowIds(np.empty(0, np.int64), offsets)
        nothing = np.empty((0, dim), np.float32)
        return Delta(name, nothing, rows, wire, (encode_rows(nothing, wire),))

    def _max_rows(self, name: str) -> int:
        """Rows of a table in one message."""
        dim = self._rows[name].store.spec.dim
        return max(1, _MESSAGE_VALUES // (dim * len(self._rows)))

    def _send(self, deltas: list[Delta]) -> None:
        state = self._job.keeper.state()
        exchange = self._exchange(deltas, self._step, state=state)
        self._flying = self._job.communicator.submit(exchange)

    def _exchange_now(self, deltas: list[Delta]) -> None:
        self._send(deltas)
        self.wait_exchanged()

    async def _exchange(
        self,
        deltas: list[Delta],
        step: int,
        *,
        dense: bool = True,
        state: State | None = None,
    ) -> Received:
        """Push differences, then collect everything that others changed.

        Without ``dense`` that is rows alone. The last message with differences says by
        ``state`` where this worker was when they were taken.

        Rows are received only when all of this worker's differences are added: a row that
        came earlier would lack what is still to be sent of it. What a pserver answers
        before isn't acknowledged, so it is sent again.
        """
        received = Received(step=step)
        while True:
            now, later = divided(deltas, self._max_rows)
            said = None if later else state
            more = await self._exchange_once(
                now, step, received, receives=not later, state=said
            )
            state = state if later else None
            sending = {delta.table for delta in later}
            listening = (self._rows.keys() if later else more) - sending
            wires = {delta.table: delta.wire for delta in now}
            deltas = later + [self._listening(n, wires[n]) for n in sorted(listening)]
            if not deltas:
                break
        missing = [block for block in self._blocks if block.name not in received.dense]
        if dense and missing:
            pulled = await fetch_dense(self._job, missing)
            received.dense |= {b.name: v for b, v in zip(missing, pulled, strict=True)}
        return received

    async def _exchange_once(
        self,
        deltas: list[Delta],
        step: int,
        received: Received,
        *,
        receives: bool,
        state: State | None,
    ) -> set[str]:
        """Send one message to each pserver; return the tables that have more rows to send."""
        writes = [self._write(delta) for delta in deltas]
        num_steps = max((delta.num_steps for delta in deltas), default=0)
        part_fields = partial(self._part_fields, step=step, num_steps=num_steps)
        fields = {**self._job.author.change(), "step": max(step - 1, 0)}
        if not receives:
            fields["continues"] = True
        messages = write_messages(
            writes,
            self._job.placement,
            fields,
            values_name="deltas",
            part_fields=partial(part_fields, receives=receives),
        )
        answers = await self._job.pservers.change("exchange", with_state(messages, state))
        for block in self._blocks:
            for index, write in enumerate(writes):
                if write.table == block.name:
                    received.dense[block.name] = await fetch_exchanged(
                        self._job, block, answers, index, wire=write.wire
                    )
        return self._collect(writes, answers, received, receives=receives)

    def _write(self, delta: Delta) -> Write:
        encoded: Sequence[Encoded] | None = None
        if delta.wire != "float32":
            encoded = delta.encoded
            if delta.rows is not None:
                placement = self._job.placement
                parts = [
                    delta.rows.within(placement.shards_of(s))
                    for s in range(placement.num_servers)
                ]
                encoded = [delta.encoded[0].part(part) for part in parts]
        return Write(
            table=delta.table,
            values=delta.values,
            rows=delta.rows,
            wire=delta.wire,
            encoded=encoded,
            marks=delta.marks,
            now=delta.now,
        )

    def _collect(
        self, writes: list[Write], answers: list[Message], received: Received, *, receives: bool
    ) -> set[str]:
        """Add the answers' rows to ``received``; return the tables that have more rows to send.

        Without ``receives`` rows are left with the pservers.
        """
        received.slowest = slowest_of(answers)
        for answer in answers:
            self._trained_elsewhere.update(answer.fields.get("unread", ()))
        more: set[str] = set()
        for index, write in enumerate(writes):
            if write.rows is None:
                continue
            refused = [ids for a in answers if len(ids := refused_ids(a, index))]
            if refused:
                said = received.rows.setdefault(write.table, [])
                said.append(_dropped(np.concatenate(refused), write.values))
            if not receives:
                continue
            rows = [decoded_part(answer, index, write.wire) for answer in answers]
            for server, answer in enumerate(answers):
                facts = answer.fields["parts"][index]
                self._acks[server, write.table] = int(facts["batch"])
                ids, removed = received_ids(answer, index), removed_ids(answer, index)
                pieces = received.rows.setdefault(write.table, [])
                pieces.append(ReceivedRows(removed, ids, rows[server]))
                batch, has_more = self._acks[server, write.table], bool(facts["more"])
                self._came.note(server, write.table, batch, ids, more=has_more)
                if has_more:
                    more.add(write.table)
        return more

    def _part_fields(
        self, server: int, write: Write, *, receives: bool, step: int, num_steps: int
    ) -> dict[str, float]:
        """Return what is acknowledged, how many rows may come, and how servers divide."""
        is_dense, powers = write.rows is None, self._powers(step=step)
        if self._mode.geo_merge == "paced" and self._is_counted(write.table):
            powers = Powers(HALF, HALF)  # its rule isn't the optimizer's
        return {
            "ack": self._acks.get((server, write.table), 0),
            "max_rows": self._max_rows(write.table) if receives and not is_dense else 1,
            **powers.fields(dense=is_dense, num_steps=num_steps),
        }


def _kind_of(store: RowStore) -> type[RowReplica]:
    return CountedReplica if store.spec.optimizer.num_counts else RowReplica


def _dropped(ids: NDArray[np.int64], values: NDArray[np.float32]) -> ReceivedRows:
    """Return rows that are to be dropped, int64 [n], and none in their place."""
    return ReceivedRows(ids, np.empty(0, np.int64), values[:0])
