"""The state of a pserver's training, and what commands make of it.

Commands are executed in one order, that of the calls on the event loop: what needs no table is
done by then, and the shards' owners are handed their parts in the same order. So the state is
a function of the commands. Nothing here reads a clock, waits or does I/O, and nothing else
changes this state.

A command that is refused has changed nothing: everything that can refuse it comes first.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.commands.applying import StepApplier
from paramfleet_pserver.commands.geo import GeoExchange, LocalSgdExchange
from paramfleet_pserver.commands.modes import AsyncMode, ServerMode
from paramfleet_pserver.commands.passes import PassMode
from paramfleet_pserver.commands.records import (
    AbortPass,
    Announce,
    Announced,
    Assign,
    Begin,
    BeginTerm,
    Command,
    CommitPass,
    Confirm,
    Contribute,
    Create,
    Discount,
    Exchange,
    Fence,
    Join,
    Leave,
    Limit,
    Load,
    Lose,
    Make,
    Origin,
    PassCommand,
    Prepare,
    Remove,
    Retire,
    Update,
    Void,
    WriteRows,
)
from paramfleet_pserver.commands.removing import Removal
from paramfleet_pserver.commands.taking import Taken
from paramfleet_pserver.commands.terms import Terms
from paramfleet_pserver.commands.worker_states import WorkerStates
from paramfleet_pserver.core.identities import IdentityWindow
from paramfleet_pserver.core.pacing import pace_of
from paramfleet_pserver.core.staleness import Release, StalenessGate
from paramfleet_pserver.requests.checked import (
    ExchangePart,
    ExchangeRequest,
    Mode,
    PushPart,
    PushRequest,
)
from paramfleet_pserver.requests.row_requests import (
    DiscountRequest,
    RemoveRequest,
    WriteRequest,
)
from paramfleet_pserver.tables.capacity import Claims
from paramfleet_pserver.tables.owners import Job, Owners, when_done
from paramfleet_pserver.tables.parts import DensePart, SetValues, Stepping, is_counted
from paramfleet_pserver.tables.table import DenseTable
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.errors.served import (
    OperationModeError,
    PartLostError,
    UnknownWorkerError,
)
from paramfleet_shared.net.wire.identity import ChangeIdentity
from paramfleet_shared.values.ids import Rank, Step

__all__ = ["Machine", "Outcome", "kind_of"]

FIRST_STEP = Step(0)

_KINDS: dict[Mode, type[ServerMode]] = {
    kind.name: kind
    for kind in (StepApplier, AsyncMode, GeoExchange, LocalSgdExchange, PassMode)
}


@dataclass(kw_only=True, slots=True)
class Outcome:
    """What has become of a command."""

    applied: asyncio.Future[None]
    """Done when the owners have carried it out; it must not be cancelled."""
    is_fresh: bool = True
    """Whether a change wasn't taken before: it is taken wholly or not at all."""
    released: tuple[Release, ...] = ()
    """Steps that may begin now."""
    is_changed: bool = True
    """Whether it made a difference."""
    is_noted: bool = False
    """Whether it changed something all the same, though it was taken before or had no effect on
    what it is about: a log needs it."""
    is_gone: bool = False
    """Whether the worker it names, or its former self, takes part no more."""
    step: Step = FIRST_STEP
    """The steps that a worker who joins counts as having taken."""
    taken: Taken | None = None
    """What a worker is sent in return for an exchange."""
    removal: Removal | None = None
    """Of ``Remove``: how many rows it removed is known once it is applied."""


class Machine:
    """The training state of one pserver. Used from one event loop.

    All workers take part from the start; in an elastic job each from its ``Join`` on.

    Args:
        terms: What was declared.
        elastic: Whether workers come and go.
        returning: Whether a worker that died may be started again under its rank.
        store: The tables.
        owners: Who works on them.
    """

    def __init__(
        self,
        terms: Terms,
        *,
        elastic: bool,
        returning: bool = False,
        store: TableStore,
        owners: Owners,
    ) -> None:
        self.terms = terms
        self.store = store
        self.max_staleness = terms.max_staleness
        """What holds now; an operator may have changed what was declared."""
        self.identities = IdentityWindow()
        self.removals: dict[Rank, Removal] = {}
        """The last of each worker, which sends one at a time."""
        kind = kind_of(terms.mode)
        lead = None if kind.takes_all else terms.max_staleness
        self.gate = StalenessGate(max_lead_steps=lead)
        self.lives: dict[Rank, int] = {}
        """Where workers come and go, or return, the incarnation of each that has joined."""
        self.former: dict[Rank, Step] = {}
        """Where workers return, before which step a former process of each has sent changes."""
        self.left: dict[Rank, Step] = {}
        """The steps that each worker had taken that has left, as it said."""
        self.origin = Origin()
        """What the tables were loaded from last."""
        self.is_elastic = elastic
        self.is_returning = returning
        self.states = WorkerStates()
        """Where workers were, for those that return."""
        self.owners = owners
        self._under_way: set[asyncio.Future[None]] = set()
        """What owners are still to carry out."""
        num_workers = 0 if elastic else terms.worker_num
        self.gate.restore({Rank(rank): FIRST_STEP for rank in range(num_workers)}, ())
        self.mode = kind(num_workers=num_workers, store=store, owners=owners)
        if isinstance(self.mode, StepApplier):
            if returning:
                self.mode.keep_old()
            if terms.on_worker_loss == "shrink":
                self.mode.await_confirmed()
            self.mode.reservoir.sums = terms.loss_reduction == "sum"

    @property
    def num_members(self) -> int:
        """Return how many workers take part now."""
        return len(self.gate.committed())

    def num_taking(self, step: Step) -> int:
        """Return how many workers take a step: those that take part, or left only after it."""
        return self.num_members + sum(end > step for end in self.left.values())

    def has_left(self, rank: Rank) -> bool:
        """Return whether a worker takes no more steps, as it has said."""
        return isinstance(self.mode, StepApplier) and rank in self.mode.reservoir.left()

    def check_whole(self) -> None:
        """Refuse to go on with tables that have a part of a change, or whose disk has failed.

        Raises:
            TablesDamagedError: naming the step.
            FleetError: how the disk failed.
        """
        if self.mode.damage is not None:
            raise self.mode.damage
        lost = self.owners.lost
        if lost is not None:
            raise type(lost)(**lost.facts)

    def check_rank(self, rank: Rank) -> None:
        """Refuse a worker that the job can't have.

        Raises:
            UnknownWorkerError: naming it.
        """
        unknown = rank not in self.lives if self.is_elastic else rank >= self.terms.worker_num
        if unknown:
            raise UnknownWorkerError(rank=rank)

    def judge(
        self, command: Update | Contribute | Exchange | Remove | Discount | WriteRows
    ) -> Sequence[PushPart] | Sequence[ExchangePart] | Sequence[WriteRequest]:
        """Return the parts of a change that it would apply, and change nothing.

        A removal has none, nor has a discount.

        Raises:
            TablesDamagedError: if a change was applied in part.
            FencedError: if a newer incarnation of the worker is known.
            SequenceTooEarlyError: if its sequence is too far ahead of one that hasn't come.
            UnknownWorkerError: if the worker takes no part.
            ParkedStepError: if its step may not begin yet.
            OperationModeError: if the job's mode has no such change.
            FleetError: why a step of sync takes no push; see ``StepReservoir.check``.
        """
        self.check_whole()
        match command:
            case Contribute(push):
                if not self.identities.check(push.identity) or self._has_part(push):
                    return ()
                self._stepping("contribute").reservoir.check(push.rank, push.step, push.weight)
                return push.parts
            case Update(push):
                self._updating()
                is_fresh = self.identities.check(push.identity)
                self.gate.check(push.rank, push.step)
                return push.parts if is_fresh else ()
            case Remove() | Discount() | WriteRows():
                return self._judge_rows(command)
            case Exchange(exchange):
                self._exchanging("exchange")
                is_fresh = self.identities.check(exchange.identity)
                self.gate.check(exchange.rank, exchange.step)
                return exchange.parts if is_fresh and not self._has_exchange(exchange) else ()

    def _judge_rows(self, command: Remove | Discount | WriteRows) -> Sequence[WriteRequest]:
        """Judge a change of rows past their optimizer, as ``judge`` does."""
        match command:
            case Remove(remove):
                if self.identities.check(remove.identity):
                    self.gate.check(remove.rank, remove.step)
                    self.mode.check_rows(remove)
            case Discount(discount):
                self.check_rank(discount.rank)
                self.identities.check(discount.identity)
            case WriteRows(write):
                self.check_rank(write.rank)
                if self.identities.check(write.identity) and _is_due(write):
                    self.gate.check(write.rank, write.step)
                    self.mode.check_rows(write)
                    return (write,)
        return ()

    def judge_pass(self, command: PassCommand) -> bool:
        """Return whether a command of a pass wasn't executed before, and change nothing.

        Raises:
            OperationModeError: if the mode isn't gpubox.
            TablesDamagedError: if a change was applied in part.
            UnknownWorkerError: if the job has no such worker.
            FencedError: if a newer incarnation of the worker is known.
            FleetError: why the command can't be executed; see ``PassMode.check``.
        """
        passes = self._passing()
        self.check_whole()
        self.check_rank(command.rank)
        self.identities.expect(command.rank, command.incarnation)
        return passes.check(command)

    def execute(
        self,
        command: Command,
        *,
        claims: Claims | None = None,
        reads: Sequence[Job] | None = None,
        alone: bool = False,
    ) -> Outcome:
        """Change the state, or refuse to and change nothing.

        Args:
            command: The next one in the order.
            claims: Room for the rows that it creates; it is given back when they are there.
            reads: Of ``Create``: jobs that read the rows as they create them.
            alone: Whether nobody else waits for the event loop.

        Raises:
            OperationModeError: if the job's mode has no such command.
            FleetError: as ``judge`` does, or why a worker isn't admitted.
        """
        held = Claims() if claims is None else claims
        outcome = self._execute(command, held, reads, alone=alone)
        if not outcome.applied.done():
            self._under_way.add(outcome.applied)
            outcome.applied.add_done_callback(self._under_way.discard)
        return outcome

    async def settle(self) -> None:
        """Return at a moment at which all that was executed has ended, and is counted.

        Who executes nothing meanwhile waits for what owners have been given already.
        """
        while under_way := self._under_way | self.mode.under_way:
            await asyncio.wait(under_way)

    def _execute(
        self, command: Command, claims: Claims, reads: Sequence[Job] | None, *, alone: bool
    ) -> Outcome:
        match command:
            case Update(push):
                outcome = self._update(push, claims, alone=alone)
            case Contribute(push):
                outcome = self._contribute(push, claims)
            case Exchange(exchange):
                outcome = self._exchange(exchange, claims)
            case Create():
                outcome = self._create(command, reads, claims, alone=alone)
            case Remove() | Discount() | WriteRows():
                outcome = self._touch(command, claims)
            case Assign():
                outcome = self._assign(command)
            case Prepare() | CommitPass() | AbortPass():
                outcome = self._pass(command, claims)
            case Announce() | Announced():
                outcome = self._announce(command)
            case Make() | Load():
                outcome = self._put(command)
            case _:
                outcome = self._admit(command)
        return outcome

    def _updating(self) -> None:
        """Pass if pushes are applied as they come.

        Raises:
            OperationModeError: if the mode isn't async.
        """
        if not isinstance(self.mode, AsyncMode):
            raise OperationModeError(operation="update", mode=self.terms.mode)

    def _stepping(self, operation: str) -> StepApplier:
        """Return what steps all workers together.

        Raises:
            OperationModeError: if the mode isn't sync.
        """
        if not isinstance(self.mode, StepApplier):
            raise OperationModeError(operation=operation, mode=self.terms.mode)
        return self.mode

    def _exchanging(self, operation: str) -> GeoExchange:
        """Return what notes rows for workers.

        Raises:
            OperationModeError: if the mode is neither GEO nor LocalSGD.
        """
        if not isinstance(self.mode, GeoExchange):
            raise OperationModeError(operation=operation, mode=self.terms.mode)
        return self.mode

    def _passing(self) -> PassMode:
        """Return what keeps passes.

        Raises:
            OperationModeError: if the mode isn't gpubox.
        """
        if not isinstance(self.mode, PassMode):
            raise OperationModeError(operation="pass", mode=self.terms.mode)
        return self.mode

    def _pass(self, command: PassCommand, claims: Claims) -> Outcome:
        is_fresh = self.judge_pass(command)
        is_newer = self._fence(command.rank, command.incarnation)
        if not is_fresh:
            claims.release()
            return self._done(is_fresh=False, is_changed=False, is_noted=is_newer)
        return Outcome(applied=self._passing().execute(command, claims))

    def _admit(
        self,
        command: Void
        | Begin
        | BeginTerm
        | Fence
        | Join
        | Leave
        | Lose
        | Limit
        | Confirm
        | Retire,
    ) -> Outcome:
        """Execute what changes no row."""
        match command:
            case BeginTerm(term):
                self.mode.begin_term(term)
            case Void() | Begin() | Confirm() | Retire():
                return self._count(command)
            case Fence(rank, incarnation):
                self._fence(rank, incarnation)
            case Join():
                return self._join(command)
            case Leave(rank, incarnation, step):
                self.identities.expect(rank, incarnation)
                self.mode.leave(rank, step)
                self.identities.fence(rank, incarnation)
                released = self._forget(rank)
                self.left[rank] = step
                return self._done(released=released, is_gone=True)
            case Lose(rank, incarnation):
                return self._lose(rank, incarnation)
            case Limit(max_staleness):
                return self._limit(max_staleness)
        return self._done()

    def _step_without(self, command: Confirm | Retire) -> Outcome:
        """Execute what lets steps be applied that wait for more than their parts.

        Raises:
            FencedError: of a confirmation, if a newer incarnation of the worker is known.
            PartLostError: if a worker's part is missing here that other servers have.
        """
        steps, rank = self._stepping("confirm"), command.rank
        if isinstance(command, Confirm):
            self.identities.expect(rank, command.incarnation)
            known = (steps.confirmed or {}).get(rank, FIRST_STEP)
            if steps.confirmed is None or known >= command.step:
                return self._done(is_changed=False)
            steps.confirm(rank, command.step)
            return self._done()
        if self.has_left(rank):
            return self._done(is_changed=False)
        if steps.lacks(rank, command.step):
            raise PartLostError(rank=rank, step=steps.reservoir.next_of(rank))
        self.identities.fence(
            rank, max(command.incarnation + 1, self.identities.incarnation(rank))
        )
        steps.retire(rank, command.step)
        return self._done(released=self._forget(rank), is_gone=True)

    def _lose(self, rank: Rank, incarnation: int) -> Outcome:
        known = self.identities.incarnation(rank)
        if known > incarnation and not self._is_awaited(rank, incarnation):
            return self._done(is_changed=False)
        self.identities.fence(rank, max(incarnation + 1, known))
        if self.mode.in_step:  # from which step on it takes no part is to be agreed on
            return self._done()
        return self._done(released=self._forget(rank), is_gone=True)

    def _is_awaited(self, rank: Rank, incarnation: int) -> bool:
        """Return whether others still wait at the gate for a worker's process.

        Its incarnation may be fenced already: a new owner reads those of the registry. In sync
        that fence is all that a loss does here.
        """
        has_place = self.gate.has(rank) and self.lives.get(rank) == incarnation
        return has_place and not self.mode.in_step

    def _limit(self, max_staleness: int | None) -> Outcome:
        if not self.mode.limit_changes or max_staleness == self.max_staleness:
            return self._done(is_changed=False)
        self.max_staleness = max_staleness
        return self._done(released=self.gate.limit(max_staleness))

    def _update(self, push: PushRequest, claims: Claims, *, alone: bool) -> Outcome:
        self._updating()
        is_fresh = self.identities.check(push.identity)
        self.gate.check(push.rank, push.step)
        self.identities.record(push.identity)
        new = push.parts if is_fresh else ()
        if is_fresh:
            self._note_progress(push.rank, push.step, push.progress)
        jobs = [job for part in new for job in self._jobs(part, push.identity)]
        applied = self.owners.start(jobs, alone=alone)
        when_done(applied, partial(self._note_end, push.step, new, claims))
        released = () if push.continues else self._commit(push.rank, push.step, push.first)
        return Outcome(
            applied=applied, is_fresh=is_fresh, released=released, is_noted=not is_fresh
        )

    def _jobs(self, part: PushPart, identity: ChangeIdentity) -> list[Job]:
        """Return the update that a part is."""
        table, content = part.table, part.content
        if isinstance(table, DenseTable) and isinstance(content, DensePart):
            content = table.resolved(content, identity)
        by = Stepping(part.lr, table.number_of(content), part.rule)
        if self.terms.async_rate == "full":
            return table.update_jobs([content], by)
        workers = max(1, self.num_members)
        pace = pace_of(table.spec.optimizer, update=max(1, by.step), workers=workers)
        return table.paced_jobs(content, by, pace=pace)

    def _contribute(self, push: PushRequest, claims: Claims) -> Outcome:
        steps = self._stepping("contribute")
        if not self.identities.check(push.identity):
            claims.release()
            return self._done(is_fresh=False, is_changed=False)
        if self._has_part(push):  # of a former process of the worker: the same numbers
            claims.release()
            self.identities.record(push.identity)
            return self._done()
        steps.reservoir.check(push.rank, push.step, push.weight)
        self.identities.record(push.identity)
        self._note_progress(push.rank, push.step, push.progress)
        released = self._commit(push.rank, push.step)
        steps.keep(push, claims)
        return self._done(released=released)

    def _has_part(self, push: PushRequest) -> bool:
        """Return whether a former process of a worker has pushed its part of a step here."""
        mode = self.mode
        return (
            self.is_returning
            and isinstance(mode, StepApplier)
            and mode.reservoir.next_of(push.rank) > push.step
        )

    def _note_progress(
        self, rank: Rank, step: Step, progress: NDArray[np.uint8] | None
    ) -> None:
        if progress is not None:
            self.states.note(rank, Step(step + 1), progress.tobytes())

    def _exchange(self, exchange: ExchangeRequest, claims: Claims) -> Outcome:
        geo = self._exchanging("exchange")
        is_fresh = self.identities.check(exchange.identity)
        self.gate.check(exchange.rank, exchange.step)
        self._fence(exchange.rank, exchange.identity.incarnation)
        is_new = is_fresh and not self._has_exchange(exchange)
        self.identities.record(exchange.identity)
        new = exchange.parts if is_new else ()
        if is_fresh:
            self._note_progress(exchange.rank, exchange.step, exchange.progress)
        jobs = geo.jobs(exchange, new, num_workers=self.num_taking(exchange.step))
        taken = geo.take(exchange)
        applied = self.owners.start([*jobs, *taken.jobs()])
        when_done(applied, partial(self._note_end, exchange.step, new, claims))
        released = self._commit(exchange.rank, exchange.step)
        return Outcome(
            applied=applied,
            is_fresh=is_fresh,
            released=released,
            taken=taken,
            is_noted=not is_fresh,  # the rows that it is sent are taken once more
        )

    def _has_exchange(self, exchange: ExchangeRequest) -> bool:
        """Return whether a former process of a worker has sent what a step ended with here.

        It is trained again where another server lacks it, and means the same.
        """
        former = self.former.get(exchange.rank, FIRST_STEP)
        if exchange.identity.incarnation > self.identities.incarnation(exchange.rank):
            former = self._sent_before(exchange.rank)
        return exchange.step < former

    def _sent_before(self, rank: Rank) -> Step:
        """Return before which step a worker has sent its changes here, if it may return."""
        return self.gate.committed().get(rank, FIRST_STEP) if self.is_returning else FIRST_STEP

    def _count(self, command: Void | Begin | Confirm | Retire) -> Outcome:
        """Execute what counts as a change, or makes one count."""
        if isinstance(command, Confirm | Retire):
            return self._step_without(command)
        if isinstance(command, Begin):
            return self._begin(command)
        return self._void(command.identity)

    def _void(self, identity: ChangeIdentity) -> Outcome:
        self.check_whole()
        self.check_rank(Rank(identity.worker))
        is_fresh = self.identities.check_void(identity)
        self.identities.record(identity, voided=True)
        return self._done(is_fresh=is_fresh, is_changed=is_fresh)

    def _begin(self, command: Begin) -> Outcome:
        self._updating()
        rank = Rank(command.identity.worker)
        is_fresh = self.identities.check(command.identity)
        self.gate.check(rank, command.step)
        self.identities.record(command.identity)
        released = self.gate.begin_at(rank, command.step) if is_fresh else ()
        return self._done(is_fresh=is_fresh, is_changed=is_fresh, released=released)

    def _create(
        self, command: Create, reads: Sequence[Job] | None, claims: Claims, *, alone: bool
    ) -> Outcome:
        if reads is None:
            reads = [job for table, rows in command.new for job in table.create_jobs(rows)]
        applied = self.owners.start(reads, alone=alone)
        when_done(applied, lambda _: claims.release())
        return Outcome(applied=applied)

    def _touch(self, command: Remove | Discount | WriteRows, claims: Claims) -> Outcome:
        match command:
            case Remove(remove):
                return self._remove(remove)
            case Discount(discount):
                return self._discount(discount)
            case WriteRows(write):
                return self._write(write, claims)

    def _remove(self, remove: RemoveRequest) -> Outcome:
        self.judge(Remove(remove))
        if not self.identities.check(remove.identity):
            return self._removed_before(remove)
        self.identities.record(remove.identity)
        if len(remove.rows.ids):
            self.mode.note_write(remove.table, f"a removal by worker {remove.rank}")
        counts: list[int] = []
        applied = self.owners.start(self.mode.remove(remove, counts))
        when_done(applied, partial(self._note_end, remove.step, (), Claims()))
        removal = Removal(remove.identity, applied, counts)
        self.removals[remove.rank] = removal
        return Outcome(applied=applied, removal=removal)

    def _discount(self, discount: DiscountRequest) -> Outcome:
        self.judge(Discount(discount))
        if not self.identities.check(discount.identity):
            return self._done(is_fresh=False, is_changed=False)
        self.identities.record(discount.identity)
        jobs = discount.table.discount_jobs(discount.rows, discount.amounts)
        applied = self.owners.start(jobs)
        when_done(applied, partial(self._note_end, discount.step, (), Claims()))
        return Outcome(applied=applied)

    def _write(self, write: WriteRequest, claims: Claims) -> Outcome:
        self.judge(WriteRows(write))
        if not self.identities.check(write.identity):
            claims.release()
            return self._done(is_fresh=False, is_changed=False)
        self.identities.record(write.identity)
        if not _is_due(write):
            claims.release()
            return self._done(is_changed=False, is_noted=True)
        table = write.table
        table.is_assigned |= write.is_last
        if len(write.rows.ids):
            self.mode.note_write(table, f"a write by worker {write.rank}")
        applied = self.owners.start(self.mode.write(write))
        when_done(applied, partial(self._note_end, write.step, (), claims))
        return Outcome(applied=applied)

    def _removed_before(self, remove: RemoveRequest) -> Outcome:
        """Return what has become of a removal that is sent again, and remove nothing."""
        last = self.removals.get(remove.rank)
        if last is None or last.identity != remove.identity:  # nobody waits for its answer
            last = Removal(remove.identity, self.owners.start(()), [])
        return Outcome(applied=last.applied, is_fresh=False, is_changed=False, removal=last)

    def _announce(self, command: Announce | Announced) -> Outcome:
        if isinstance(command, Announce):
            jobs = self._exchanging("announce").announce(command)
            return Outcome(applied=self.owners.start(jobs))
        self._exchanging("announced").announced(command)
        return self._done()

    def _put(self, command: Make | Load) -> Outcome:
        return self._make(command) if isinstance(command, Make) else self._load(command)

    def _load(self, command: Load) -> Outcome:
        self.mode.check_write("load")
        loaded = {table.spec.name for table in command.tables}
        if loaded.issuperset(table.spec.name for table in self.store):
            self.identities.forget_effects()
        self.store.put(command.tables)
        self.origin = command.origin
        for name in loaded:
            self.mode.note_write(self.store.find(name), "a load")
        return self._done()

    def _make(self, command: Make) -> Outcome:
        new = self.store.check(command.specs)
        built = command.built or tuple(self.store.build(spec) for spec in new)
        for table in built:
            table.version = self.mode.applied or 0
        self.store.put(built)
        return self._done(is_changed=bool(built))

    def _assign(self, command: Assign) -> Outcome:
        assign = command.assign
        table = assign.table
        self.identities.expect(assign.rank, assign.incarnation)
        has_effect = table.is_new or not assign.only_if_new
        if has_effect:
            self.mode.check_write("assign")
        is_newer = self._fence(assign.rank, assign.incarnation)
        if not has_effect:
            return self._done(is_changed=False, is_noted=is_newer)
        table.is_assigned = True
        self.mode.note_write(table, f"an assignment by worker {assign.rank}")
        job = table.assign_job(assign.values)
        if assign.places is not None:
            job = table.set_job(SetValues(assign.places, assign.values))
        return Outcome(applied=self.owners.start([job]))

    def _join(self, command: Join) -> Outcome:
        rank, incarnation = command.rank, command.incarnation
        self._fence(rank, incarnation)
        if not self.is_elastic:
            return self._return(rank, incarnation) if self.is_returning else self._done()
        released: tuple[Release, ...] = ()
        is_gone = self.lives.get(rank) != incarnation
        if is_gone:
            released = self._take_out(rank)
            self.lives[rank] = incarnation
            self.left.pop(rank, None)
            self.mode.join(rank)
        return self._done(released=released, is_gone=is_gone, step=self.gate.join(rank))

    def _return(self, rank: Rank, incarnation: int) -> Outcome:
        """Let a worker go on where its former process was."""
        former, self.lives[rank] = self.lives.get(rank), incarnation
        if former not in {None, incarnation}:
            for table in self.store:
                if isinstance(table, DenseTable):
                    table.forget(rank)
            self.removals.pop(rank, None)
            self.mode.forget(rank)
            self.mode.join(rank)
        left_at = self.left.pop(rank, None)
        released: tuple[Release, ...] = ()
        step = self.mode.begins(rank)
        if step is None:
            step = self.gate.join(rank)  # where it was, or, if it had left, with the slowest
            if left_at is not None and left_at > step:  # all that it has left was taken
                step, released = left_at, self.gate.begin_at(rank, left_at)
        return self._done(step=step, released=released)

    def _fence(self, rank: Rank, incarnation: int) -> bool:
        """Admit a worker's incarnation; return whether it wasn't known.

        Raises:
            FencedError: if a newer one is known.
        """
        known = self.identities.incarnation(rank)
        self.identities.fence(rank, incarnation)
        if incarnation != known and (step := self._sent_before(rank)):
            self.former[rank] = step
        return incarnation != known

    def _forget(self, rank: Rank) -> tuple[Release, ...]:
        """Count a worker as one that takes no part, and keep nothing of its updates."""
        for table in self.store:
            if isinstance(table, DenseTable):
                table.forget(rank)
        self.removals.pop(rank, None)
        return self._take_out(rank)

    def _take_out(self, rank: Rank) -> tuple[Release, ...]:
        """Count a worker as one that takes no part."""
        self.mode.forget(rank)
        return self.gate.leave(rank)

    def _commit(self, rank: Rank, step: Step, first: Step | None = None) -> tuple[Release, ...]:
        """Note that a worker has finished steps; a worker that left is no error."""
        if rank not in self.gate.committed():
            return ()
        return self.gate.commit(rank, step, first=first)

    def _note_end(
        self,
        step: Step,
        parts: Sequence[PushPart] | Sequence[ExchangePart],
        claims: Claims,
        applied: asyncio.Future[None],
    ) -> None:
        """Count a change; if it failed, although there was room for it, some shards have it."""
        claims.release()
        error = applied.exception()
        if error is not None:
            self.mode.note_damage(step, error)
            return
        for part in parts:
            part.table.version += is_counted(part.content)

    def _done(self, **facts: object) -> Outcome:
        """Return the outcome of a command that the owners have nothing to do for."""
        return Outcome(applied=self.owners.start(()), **facts)  # type: ignore[arg-type]


def _is_due(write: WriteRequest) -> bool:
    """Return whether a write has an effect on its table as it is now."""
    return write.table.is_new or not write.only_if_new


def kind_of(mode: Mode) -> type[ServerMode]:
    """Return what a mode is on a server."""
    return _KINDS[mode]
