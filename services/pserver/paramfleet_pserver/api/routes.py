"""The operations of the data plane: one method each, from a message to a message.

A request is taken apart and judged first; nothing has changed when it is refused. What
changes the tables then happens without an ``await`` between the last check and the
first effect, and goes on to its end even when the caller's time is over.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from paramfleet_pserver.api import passing
from paramfleet_pserver.api.access import IssuedIncarnations
from paramfleet_pserver.api.answers import described
from paramfleet_pserver.api.durable import DurableAnswers
from paramfleet_pserver.api.prefetching import Prefetches
from paramfleet_pserver.api.pushing import (
    answer_pull,
    apply_exchange,
    apply_push,
    discount_rows,
    keep_push,
    remove_rows,
    take_step,
    trained_beside,
    write_rows,
)
from paramfleet_pserver.api.reading import pull_of_step, read_packed
from paramfleet_pserver.api.surveying import survey
from paramfleet_pserver.checkpoint.routes import Checkpointing
from paramfleet_pserver.commands.applying import StepApplier
from paramfleet_pserver.commands.machine import Machine, kind_of
from paramfleet_pserver.commands.records import (
    Assign,
    Begin,
    BeginTerm,
    Confirm,
    Join,
    Leave,
    Limit,
    Lose,
    Make,
    Retire,
    Void,
)
from paramfleet_pserver.commands.terms import Terms
from paramfleet_pserver.durability.copies.registered import Copies
from paramfleet_pserver.durability.copies.stream import LIMIT_BYTES
from paramfleet_pserver.durability.journal import Journal
from paramfleet_pserver.durability.persistence import Persistence
from paramfleet_pserver.durability.recovery import RestoreProgress
from paramfleet_pserver.durability.snapshot_files import SnapshotFile
from paramfleet_pserver.following.feeds import FEEDING, Feeds
from paramfleet_pserver.following.follower import Promoted
from paramfleet_pserver.following.ownership import Ownership
from paramfleet_pserver.following.serving import FOLLOWING, Followers
from paramfleet_pserver.following.sessions import Handover
from paramfleet_pserver.requests.changes import identity_of
from paramfleet_pserver.requests.checked import (
    DeclareRequest,
    declare_request,
    exchange_request,
    pull_request,
    push_request,
)
from paramfleet_pserver.requests.dense_requests import assign_request, stage_request
from paramfleet_pserver.requests.fields import Fields
from paramfleet_pserver.requests.finite import check_change, check_row_values, check_values
from paramfleet_pserver.requests.row_requests import (
    discount_request,
    remove_request,
    write_request,
)
from paramfleet_pserver.requests.staging import Staging
from paramfleet_pserver.requests.total_requests import norm_request, total_request
from paramfleet_pserver.tables.owners import Job, Owners
from paramfleet_pserver.tables.table import DenseTable, SparseTable, Table
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_pserver.waiting.training import Training
from paramfleet_shared.discovery.orders import Orders
from paramfleet_shared.errors import FleetError
from paramfleet_shared.errors.following import FollowAgainError
from paramfleet_shared.errors.served import (
    ElasticModeError,
    NotKeptError,
    OperationModeError,
    TablesNotDeclaredError,
    UnknownWorkerError,
)
from paramfleet_shared.errors.tables import ColdDiskError, ColdRowsLostError
from paramfleet_shared.files.folders import CheckpointDirs
from paramfleet_shared.net.rpc.server import Request
from paramfleet_shared.net.rpc.tasks import begun
from paramfleet_shared.net.wire.identity import FIRST_SEQUENCE
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.settings.failpoints import failpoint
from paramfleet_shared.system.clock import Clock
from paramfleet_shared.tables.kernels.basics.parts import parts_of
from paramfleet_shared.tables.kernels.basics.readiness import compile_missing
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.tables.warm import warm
from paramfleet_shared.values.ids import Rank, Step

__all__ = ["OPERATIONS", "Routes"]

OPERATIONS = (
    "declare", "pull", "stage", "push", "step", "exchange", "survey", "prefetch",
    "remove", "discount", "write", "void", "assign", "leave",
    "join", "begin", "settle", "progress", "wait_turn", "hold", "save", "saved", "load",
    "status", "total", "norm", "await_step", "answer", "states",
    "read_pass", "prepare_pass", "commit_pass", "abort_pass", "pass_state",
    *FOLLOWING,
    *FEEDING,
)  # fmt: skip
"""Methods of ``Routes``, and those of followers and readers, by the names they have on the
wire."""

COMPILING_ROWS = 1 << 30
"""What a job counts for that must never run on the event loop."""


class Routes:
    """The operations on one server's tables. Used from one event loop.

    Args:
        store: The tables.
        owners: Who works on them.
        server: This server's index.
        clock: By whose time deadlines are meant.
        elastic: Whether the job's workers come and go.
        returning: Whether a worker that died may be started again under its rank.
        dirs: Where requests may have checkpoints saved and loaded; if not given, below the
            working folder.
        issued: Incarnations that workers may act under; None lets them act under any.
        persistence: Where the training is kept; None keeps it in memory alone.
        term: This process's incarnation, with which it owns the group; that of the persistence,
            if there is one. Without any, nobody can follow.
        replicas: How many others are to follow: with one, what workers send counts as durable
            when it is there, too.
        replica_grace_s: Seconds for which somebody who follows is waited for.
        stream_bytes: Of commands that are kept for followers.
        proposes: Whether the registry names the disk only when this has proposed it.
    """

    def __init__(  # noqa: PLR0913 (all but the first by keyword)
        self,
        store: TableStore,
        *,
        owners: Owners,
        server: int,
        clock: Clock,
        elastic: bool = False,
        returning: bool = False,
        dirs: CheckpointDirs | None = None,
        issued: IssuedIncarnations | None = None,
        persistence: Persistence | None = None,
        term: int | None = None,
        replicas: int = 0,
        replica_grace_s: float = 0.0,
        stream_bytes: int = LIMIT_BYTES,
        proposes: bool = False,
    ) -> None:
        self._store = store
        self._issued = issued
        self._persistence = persistence
        self._durable: DurableAnswers | None = None
        self._replicas = replicas
        self._grace_s = replica_grace_s
        self._stream_bytes = stream_bytes
        self._proposes = proposes
        if persistence is not None:
            term = persistence.term
        self._ownership = Ownership(server, term or 0)
        self.followers = Followers(self._ownership, lambda: self._training, clock=clock)
        """Those who follow this group."""
        self._feeds = Feeds(store, owners, clock=clock)
        self._prefetches = Prefetches(owners, clock)
        if term is not None:
            waits = persistence is not None and persistence.waits
            self._durable = DurableAnswers(ownership=self._ownership, waits=waits, clock=clock)
        self._elastic = elastic
        self._returning = returning
        self._lost: dict[Rank, int] = {}
        self._owners = owners
        self._clock = clock
        self._checkpoints = Checkpointing(
            store, owners, server=server, clock=clock, dirs=dirs or CheckpointDirs.of("")
        )
        self._holding = self._checkpoints.holding
        self._training: Training | None = None
        self._failure: FleetError | None = None
        self._staging = Staging(store.check_memory)
        self._making = asyncio.Lock()
        """Held while tables are made, which takes a while: others would make them, too."""

    def handle(self, operation: str, request: Request) -> Message | Awaitable[Message]:
        """Serve one of ``OPERATIONS``, at once if nothing has to be waited for.

        Raises:
            FleetError: why it is refused at once.
        """
        if operation != "status" and (refusal := self._disk_refusal()) is not None:
            raise refusal
        if operation in FOLLOWING:
            return self._handle_follower(operation, request)
        if operation in FEEDING:
            return self._handle_reader(operation, request)
        handler: Callable[[Request], Coroutine[Any, Any, Message]] = getattr(self, operation)
        if self._durable is not None:
            self._durable.check_address(operation, request)
            if operation == "join" or not self._durable.is_plain(self._journal):
                plain = handler
                handler = partial(self._serve_durably, self._durable, operation, plain)
        handler = partial(self._on_disk, handler)
        if self._issued is not None and not self._issued.lets(operation, request):
            return self._issued.admitted(operation, request, handler)
        return begun(handler(request))

    async def _on_disk(
        self, handler: Callable[[Request], Coroutine[Any, Any, Message]], request: Request
    ) -> Message:
        """Serve a request; if a disk fails with rows on it, say who has them then.

        Raises:
            ColdDiskError: if that is another process.
            ColdRowsLostError: if nobody has them.
            FleetError: as the handler does otherwise.
        """
        try:
            return await handler(request)
        except FleetError as error:
            if (refusal := self._disk_refusal()) is not None:
                raise refusal from error
            raise

    def _disk_refusal(self) -> FleetError | None:
        lost = self.lost_rows
        if lost is None or not self.has_copy:
            return lost
        return ColdDiskError(server=lost.server, reason=lost.reason)

    @property
    def lost_rows(self) -> ColdRowsLostError | None:
        """Return how the disk failed on which rows are; None if it didn't."""
        lost = self._owners.lost
        if lost is None:
            return None
        return ColdRowsLostError(server=self._ownership.group, reason=str(lost))

    @property
    def has_copy(self) -> bool:
        """Return whether another process can go on with the training."""
        return self._persistence is not None or bool(self.followers.named()[1])

    def _handle_follower(self, operation: str, request: Request) -> Awaitable[Message]:
        if self._durable is None:
            raise FollowAgainError(follower="", reason="this pserver has no term")
        self._durable.check_address(operation, request)
        handler: Callable[[Request], Coroutine[Any, Any, Message]]
        handler = getattr(self.followers, operation)
        return self._on_disk(handler, request)

    def _handle_reader(self, operation: str, request: Request) -> Awaitable[Message]:
        if self._training is None:
            raise TablesNotDeclaredError(operation=operation)
        if self._durable is not None:
            self._durable.check_address(operation, request)
        return self._on_disk(partial(self._read, operation), request)

    async def _read(self, operation: str, request: Request) -> Message:
        """Answer a reader, as the group's owner.

        Raises:
            MovedError: if another process owns it.
            FleetError: why it is refused.
        """
        await self._ownership.until_active()  # who may be about to own it has other rows soon
        handler: Callable[[Request], Coroutine[Any, Any, Message]]
        handler = getattr(self._feeds, operation)
        return await handler(request)

    @property
    def _journal(self) -> Journal | None:
        return None if self._training is None else self._training.journal

    async def _serve_durably(
        self,
        durable: DurableAnswers,
        operation: str,
        handler: Callable[[Request], Coroutine[Any, Any, Message]],
        request: Request,
    ) -> Message:
        return await durable.serve(lambda: self._journal, operation, request, handler)

    async def recover(self, progress: RestoreProgress | None = None) -> bool:
        """Go on with the training that is on the disk; returns whether there is one.

        ``begin_term`` comes next.

        Args:
            progress: Is told how far it is.

        Raises:
            FleetError: why it can't be recovered; see ``Persistence.recover``.
            OSError: if the system refuses.
        """
        if self._persistence is None:
            return False
        copies = partial(self._copies, has_disk=True)
        found = await self._persistence.recover(
            self._store, self._owners, copies=copies, progress=progress
        )
        if found is None:
            return False
        machine, journal = found
        self._training = self._trains(machine, journal)
        self._await_proposal(journal)
        return True

    def begin_term(self) -> None:
        """Give no number again to anything that this pserver may have answered before.

        Raises:
            UnavailableError: if the disk refuses it now; then it is to be tried again.
        """
        assert self._training is not None, "it was recovered"
        self._training.execute(BeginTerm(self._ownership.term))
        self._apply_losses(self._training)

    def go_on(self, promoted: Promoted) -> None:
        """Go on with the training of an owner that this process has followed.

        ``followers.inherit`` comes next, then ``fence`` for each of ``ranks``; with a disk,
        ``take_snapshot`` until there is one.
        """
        assert self._durable is not None, "an owner has a term"
        assert promoted.machine.store is self._store, "the tables are those of the follower"
        journal = Journal(
            promoted.machine.identities,
            copies=self._copies(has_disk=False),
            clock=self._clock,
            position=promoted.position,
            stream_bytes=self._stream_bytes,
        )
        self._training = training = self._trains(promoted.machine, journal)
        if not promoted.is_exact:
            training.execute(BeginTerm(self._ownership.term))
        training.waits.restore_totals(promoted.totals)
        self._apply_losses(training)

    def give_up(self) -> None:
        """Another process owns the group: answer all that wait, and all that come."""
        error = self._ownership.refusal()
        self._ownership.give_up()
        self.fail(error)

    def unfence(self, term: int) -> None:
        """Go on as the owner after a follower has fenced, under another term.

        Args:
            term: A newer one, that the registry has; then nobody else can have the group.
        """
        assert self._durable is not None, "it was fenced"
        self._durable.begin_term(term)
        self.followers.go_on(term)
        if self._journal is not None:
            self._journal.begin_term(term)

    @property
    def term(self) -> int:
        """Return under which incarnation this process owns the group."""
        return self._ownership.term

    @property
    def handover(self) -> Handover | None:
        """Return who is about to take over; None for nobody."""
        return self.followers.handover

    def _trains(self, machine: Machine, journal: Journal | None) -> Training:
        self._checkpoints.go_on(machine)
        check = None if self._durable is None else self._ownership.check
        return Training(machine, clock=self._clock, journal=journal, check=check)

    def _copies(self, *, has_disk: bool) -> Copies:
        return Copies(
            replicated=self._replicas > 0,
            has_disk=has_disk,
            awaits_disk=self._persistence is not None and not has_disk,
            grace_s=self._grace_s,
            now=self._clock.monotonic(),
        )

    def ranks(self) -> list[Rank]:
        """Return the workers that have taken part in the training, in order."""
        if self._training is None:
            return []
        return [Rank(rank) for rank in sorted(self._training.identities.incarnations())]

    @property
    def is_refusing(self) -> bool:
        """Return whether no command is taken now: by the disk, or as another is the owner."""
        journal = self._journal
        if not self._ownership.is_active:
            return True
        return (
            journal is not None
            and journal.disk is not None
            and journal.disk.writer.state != "open"
        )

    def fence(self, rank: Rank, incarnation: int) -> None:
        """Refuse what a worker's former incarnations send, if it isn't refused already."""
        if self._training is not None:
            known = self._training.identities.incarnation(rank)
            if incarnation > known:
                self._training.fence(rank, incarnation)

    async def take_snapshot(self) -> SnapshotFile | None:
        """Take a snapshot of the training if one is due; the training goes on meanwhile.

        Raises:
            FleetError: as ``Persistence.snapshot``.
            OSError: if the system refuses, as on a full disk.
        """
        training, persistence = self._training, self._persistence
        if training is None or training.journal is None or persistence is None:
            return None
        if not self._ownership.is_active:
            return None
        disk = training.journal.disk
        if disk is None or disk.snapshot is None:
            return await persistence.join(training.machine, training.journal)
        if not persistence.is_due(training.journal):
            return None
        return await persistence.snapshot(training.machine, training.journal)

    async def settle_readers(self) -> None:
        """Return when who reads values has the last ones, or has had some time for it."""
        await self._feeds.settle()

    async def close(self) -> None:
        """Write to the disk what waits for it; nothing is executed any more."""
        await self.followers.close()
        await self._feeds.close()
        if self._journal is not None:
            await self._journal.close()

    def fail(self, error: FleetError) -> None:
        """The job failed: answer every request that waits with its error."""
        self._failure = error
        self._holding.fail(error)
        self._checkpoints.asking.fail(error)
        if self._training is not None:
            self._training.fail(error)
        if self._journal is not None and self._ownership.is_moved:
            self._journal.fail(error)

    @property
    def held_s(self) -> float:
        """Return for how many seconds in all pushes were held for checkpoints."""
        return self._holding.held_s

    def lose(self, rank: Rank, incarnation: int, step: Step | None = None) -> bool:
        """Go on without a worker, now and in a training that is to begin.

        Args:
            rank: Its rank.
            incarnation: Its process's.
            step: In sync, from which step on it takes no part, when that is agreed on.

        Returns:
            False if nothing changes.

        Raises:
            PartLostError: if its part of a step is missing here that other pservers have.
        """
        self._lost[rank] = incarnation
        if self._training is None:
            return False
        if step is not None and self._training.mode.in_step:
            if not self._training.execute(Retire(rank, incarnation, step)).is_changed:
                return False
            self._forget(rank)
            self._checkpoints.asking.leave(rank)
            return True
        if not self._training.execute(Lose(rank, incarnation)).is_changed:
            return False
        self._forget(rank)
        self._checkpoints.asking.leave(rank)
        return True

    def apply_orders(self, orders: Orders) -> None:
        """Keep to the settings that an operator changed."""
        if self._training is not None and "max_staleness" in orders.settings:
            self._training.execute(Limit(orders.settings["max_staleness"]))

    def facts(self) -> dict[str, Any]:
        """Return what an operator may ask, in plain values."""
        training = self._training
        return {
            "tables": [table.facts() for table in self._store],
            **(training.facts() if training is not None else {"mode": None, "members": []}),
            "log": self.log_facts(),
            "stopped": self._stopped(),
            "following": self.following_facts(),
            "readers": self._feeds.facts(),
        }

    def sample_rows(self) -> None:
        """Have some rows of each table looked at: what ``facts`` says of them."""
        for table in self._store:
            if isinstance(table, SparseTable):
                table.sample(self._owners)

    def _stopped(self) -> list[list[int]]:
        """Return workers of sync that are gone, from which nothing is taken any more.

        Of each the rank, the incarnation, and before which step all of its parts are with every
        pserver, as far as is known here.
        """
        training = self._training
        if training is None or not isinstance(training.mode, StepApplier):
            return []
        known = training.mode.confirmed or {}
        return [
            [rank, incarnation, known.get(rank, 0)]
            for rank, incarnation in sorted(self._lost.items())
            if training.identities.incarnation(rank) > incarnation
        ]

    @property
    def num_blocks(self) -> int:
        """Return into how many blocks the shards of each table are divided."""
        return self._store.num_owners

    def log_facts(self) -> dict[str, Any] | None:
        """Return how the log is; None where there is none."""
        journal = self._journal
        return None if journal is None or journal.disk is None else journal.facts()

    def following_facts(self) -> dict[str, Any] | None:
        """Return who follows, and what is durable; None where nobody can follow."""
        journal = self._journal
        if journal is None:
            return None
        return {
            "followers": self.followers.facts(),
            "position": journal.position,
            "durable_position": journal.durable_position if journal.reports else None,
            "unprotected": journal.is_unprotected,
            "fenced": not self._ownership.is_active,
        }

    async def count_rows(self) -> None:
        """Count by shard what rows have been made since the last time."""
        for table in self._store:
            while isinstance(table, SparseTable) and (jobs := table.count_jobs()):
                await self._owners.run(jobs)

    async def declare(self, request: Request) -> Message:
        """Make the tables that are missing; may be repeated."""
        declared = declare_request(request.message)
        self._store.check_mode(declared.mode)
        async with self._making:
            if self._training is None:
                await self._checkpoints.fit(
                    declared.specs, apart=kind_of(declared.mode).states_apart
                )
            built = await self._build(declared)
            if self._training is None:
                self._training = await self._begin(Terms.of(declared))
            training = self._training
            step = training.execute(Join(declared.rank, declared.incarnation)).step
            self._checkpoints.asking.join(declared.rank)
            if built:
                specs = tuple(table.spec for table in built)
                training.execute(Make(specs, tuple(built)))
            self._store.note_declared()
        await training.announce(training.mode.news_of_load())
        await training.announce(training.mode.news_of_all(declared.rank))
        loaded = [s.name for s in declared.specs if self._store.find(s.name).is_loaded]
        created = [table.spec.name for table in built]
        folder, digest = self._checkpoints.origin
        about = {"created": created, "loaded": loaded, "folder": folder, "manifest": digest}
        facts = {
            "step": step,
            "left": training.machine.has_left(declared.rank),
            "has_written": training.identities.next_of(declared.rank) > FIRST_SEQUENCE,
        }
        return Message(fields={**about, **facts})

    async def join(self, request: Request) -> Message:
        """Let a worker go on here, after this server went on from its disk; may be repeated.

        Raises:
            UnknownWorkerError: if it takes no part any more.
        """
        training = self._trained("join")
        fields = Fields(request.message.fields, where="join")
        rank, incarnation = Rank(fields.integer("rank")), fields.integer("incarnation")
        if self._elastic and training.machine.lives.get(rank) != incarnation:
            raise UnknownWorkerError(rank=rank)  # it was lost, or has left
        training.check_rank(rank)
        training.fence(rank, incarnation)
        self._checkpoints.asking.join(rank)
        self._store.note_declared()
        await training.announce(training.mode.news_of_load())
        await training.announce(training.mode.news_of_all(rank))
        failpoint("before_join_answer")
        return Message()

    async def begin(self, request: Request) -> Message:
        """Count a worker of async from a step on, before its first pull; may be repeated."""
        training = self._trained("begin")
        fields = Fields(request.message.fields, where="begin")
        command = Begin(identity_of(fields), Step(fields.integer("step")))
        return Message(fields={"duplicate": not training.execute(command).is_fresh})

    async def settle(self, request: Request) -> Message:
        """Answer when all that was done for a worker is durable."""
        training = self._trained("settle")
        fields = Fields(request.message.fields, where="settle")
        training.identities.expect(fields.integer("rank"), fields.integer("incarnation"))
        return Message()

    async def progress(self, request: Request) -> Message:
        """Answer where a worker was before a step, by the change that ended the one before.

        Without a step it is where it was last. There is nothing of it before its first change.
        """
        training = self._trained("progress")
        fields = Fields(request.message.fields, where="progress")
        rank, step = Rank(fields.integer("rank")), fields.optional_integer("step")
        training.check_rank(rank)
        training.identities.expect(rank, fields.integer("incarnation"))
        found = training.machine.states.before(rank, None if step is None else Step(step))
        if found is None:
            return Message(fields={"step": None})
        state = np.frombuffer(found.state, np.uint8)
        return Message(fields={"step": found.step}, tensors={"progress": state})

    async def pull(self, request: Request) -> Message:
        """Read rows; in sync not before the version asked for is reached."""
        training = self._trained("pull")
        rank = Fields(request.message.fields, where="pull").integer("rank")
        training.check_rank(Rank(rank))  # before anything is kept for it
        pull = await read_packed(pull_request, request.message, self._store)
        if pull.confirms is not None:
            training.execute(Confirm(*pull.confirms))
        await training.waits.wait(pull.min_version, deadline=request.deadline)
        return await answer_pull(training, self._owners, pull, alone=request.is_alone)

    async def stage(self, request: Request) -> Message:
        """Keep a piece of a dense table's numbers for the request that will name it."""
        training = self._trained("stage")
        piece = stage_request(request.message, self._store)
        training.check_rank(piece.rank)
        training.fence(piece.rank, piece.incarnation)
        await self._staging.put(piece)
        return Message()

    async def push(self, request: Request) -> Message:
        """Apply gradients (async), or keep them until their step is whole (sync)."""
        training = self._trained("push")
        read = partial(push_request, pieces=not training.mode.in_step)
        push = await read_packed(read, self._staging.fill(request.message), self._store)
        await check_change(push)
        if training.mode.in_step:
            is_fresh = await keep_push(training, self._owners, push, request)
        else:
            is_fresh = await apply_push(training, self._owners, push, self._holding, request)
        return Message(
            fields={
                "versions": [part.table.version for part in push.parts],
                "slowest": training.slowest_but(push.rank),
                "duplicate": not is_fresh,
            }
        )

    async def step(self, request: Request) -> Message:
        """Keep gradients as ``push``, and read what their step has made of the tables."""
        training = self._trained("step")
        push = await read_packed(push_request, request.message, self._store)
        pull = await read_packed(pull_request, pull_of_step(request.message), self._store)
        await check_change(push)
        return await take_step(training, self._owners, push, pull, request)

    async def exchange(self, request: Request) -> Message:
        """Add differences, or let optimizers take them; answer with what the others changed."""
        training = self._trained("exchange")
        exchange = await read_packed(
            exchange_request, self._staging.fill(request.message), self._store
        )
        await check_change(exchange)
        replies, losses = await apply_exchange(
            training, self._owners, exchange, self._holding, request
        )
        parts, tensors = described(replies)
        tables = [part.table for part in exchange.parts]
        reads = any(isinstance(table, DenseTable) for table in tables)
        return Message(
            fields={
                **(trained_beside(training, tables) if reads else {}),
                "parts": parts,
                "slowest": training.slowest_but(exchange.rank),
                "workers": training.num_members,
                "losses": losses,
            },
            tensors=tensors,
        )

    async def void(self, request: Request) -> Message:
        """Take a change that the worker gave up, without any effect; may be repeated."""
        training = self._trained("void")
        identity = identity_of(Fields(request.message.fields, where="void"))
        return Message(fields={"duplicate": not training.execute(Void(identity)).is_fresh})

    async def remove(self, request: Request) -> Message:
        """Remove rows of a table; in sync between two steps of all workers."""
        training = self._trained("remove")
        remove = remove_request(request.message, self._store)
        num = await remove_rows(training, self._owners, remove, self._holding, request)
        return Message(fields={"removed": num})

    async def discount(self, request: Request) -> Message:
        """Subtract what an export has of the ``delta_score`` of rows."""
        training = self._trained("discount")
        discount = discount_request(request.message, self._store)
        await discount_rows(training, self._owners, discount, self._holding, request)
        return Message()

    async def write(self, request: Request) -> Message:
        """Give rows of a table values; in sync between two steps of all workers."""
        training = self._trained("write")
        write = write_request(request.message, self._store)
        await check_row_values(write)
        is_due = await write_rows(training, self._owners, write, self._holding, request)
        return Message(fields={"is_due": is_due})

    async def survey(self, request: Request) -> Message:
        """Answer which rows of a table would be evicted first."""
        training = self._trained("survey")
        return await survey(training, self._owners, request, self._store)

    async def prefetch(self, request: Request) -> Message:
        """Bring rows that are on disk into memory, as they will be needed; may be repeated."""
        return await self._prefetches.serve(self._trained("prefetch"), request, self._store)

    async def assign(self, request: Request) -> Message:
        """Overwrite the range of a dense table, unless it holds more than first values."""
        training = self._trained("assign")
        assign = assign_request(self._staging.fill(request.message), self._store)
        await check_values(assign)
        outcome = training.execute(Assign(assign))
        del assign  # gigabytes: they are let go where the job is done, not by the event loop
        await asyncio.shield(outcome.applied)
        return Message(fields={"assigned": outcome.is_changed})

    async def leave(self, request: Request) -> Message:
        """Take a worker out of a step and all after; may be repeated."""
        training = self._trained("leave")
        fields = Fields(request.message.fields, where="leave")
        rank = Rank(fields.integer("rank"))
        incarnation, step = fields.integer("incarnation"), Step(fields.integer("step"))
        training.execute(Leave(rank, incarnation, step))
        self._forget(rank)
        return Message()

    async def wait_turn(self, request: Request) -> Message:
        """Answer when a worker may begin a step."""
        training = self._trained("wait_turn")
        fields = Fields(request.message.fields, where="wait_turn")
        rank, step = Rank(fields.integer("rank")), Step(fields.integer("step"))
        training.fence(rank, fields.integer("incarnation"))
        await training.wait_turn(rank, step, deadline=request.deadline)
        return Message(fields={"slowest": training.slowest_but(rank)})

    async def total(self, request: Request) -> Message:
        """Answer with the sum over a step's workers, once it is whole; may be repeated."""
        training = self._trained("total")
        part = total_request(request.message)
        training.fence(part.rank, part.incarnation)
        if training.journal is not None:  # after a restart the steps before may still be sent
            await training.waits.wait(part.step, deadline=request.deadline)
        total = await training.waits.total(part, request.deadline)
        return Message(fields={"workers": total.workers}, tensors={"sum": total.values})

    async def norm(self, request: Request) -> Message:
        """Answer with a norm of a step's merged gradient, once all parts are here.

        Of what this server holds of it, or of the whole, where a push of the step names that.
        May be repeated.
        """
        training = self._trained("norm")
        asked = norm_request(request.message)
        training.fence(asked.rank, asked.incarnation)
        norm = await training.waits.norm(asked, request.deadline)
        found = np.array([norm.value], np.float64)  # as a tensor: it may be infinite
        return Message(fields={"whole": norm.is_whole}, tensors={"norm": found})

    async def await_step(self, request: Request) -> Message:
        """Answer whether other workers wait in a step for this one, once they do.

        A worker that waits for the others in another call learns by it that it has to take
        their step first.
        """
        training = self._trained("await_step")
        fields = Fields(request.message.fields, where="await_step")
        rank, step = Rank(fields.integer("rank")), Step(fields.integer("step"))
        training.fence(rank, fields.integer("incarnation"))
        awaited = await training.waits.await_step(rank, step, deadline=request.deadline)
        return Message(fields={"awaited": awaited})

    async def hold(self, request: Request) -> Message:
        """Keep pushes back for a checkpoint; may be repeated."""
        return await self._checkpoints.hold(request, self._trained("hold"))

    async def save(self, request: Request) -> Message:
        """Write this server's part of a checkpoint."""
        return await self._checkpoints.save(request, self._training)

    async def saved(self, request: Request) -> Message:
        """Answer how the writing of a save has ended."""
        return await self._checkpoints.saved(request, self._training)

    async def answer(self, request: Request) -> Message:
        """Take what a worker was asked for, and answer with the next question."""
        return await self._checkpoints.answer(request, self._trained("answer"))

    async def states(self, request: Request) -> Message:
        """Answer with saved optimizer states, for workers that have their own."""
        return await self._checkpoints.states(request, self._trained("states"))

    async def read_pass(self, request: Request) -> Message:
        """Read rows and ranges with all their columns, and create none."""
        training = self._trained("read_pass")
        return await passing.read(training, self._owners, request, self._store)

    async def prepare_pass(self, request: Request) -> Message:
        """Keep a piece of what a worker has trained in a pass; may be repeated."""
        training = self._trained("prepare_pass")
        return await passing.prepare(training, self._owners, request, self._store)

    async def commit_pass(self, request: Request) -> Message:
        """Write to the tables what is prepared of a pass; may be repeated."""
        training = self._trained("commit_pass")
        return await passing.commit(training, self._owners, request)

    async def abort_pass(self, request: Request) -> Message:
        """Drop what is prepared of a pass; may be repeated."""
        return passing.abort(self._trained("abort_pass"), request)

    async def pass_state(self, request: Request) -> Message:
        """Answer which passes are committed, and what is prepared of the next one."""
        del request
        return passing.state(self._trained("pass_state"))

    async def load(self, request: Request) -> Message:
        """Take this server's part of a checkpoint into the tables."""
        async with self._making:
            return await self._checkpoints.load(request, self._training)

    async def load_from(self, directory: Path) -> dict[str, int]:
        """Take this server's part of a checkpoint; returns the rows of each table."""
        async with self._making:
            loaded = await self._checkpoints.load_from(directory, self._training)
        return {table.spec.name: table.num_rows for table in loaded.tables}

    async def status(self, request: Request) -> Message:
        """Answer what an operator may ask."""
        del request
        return Message(fields=self.facts())

    def _forget(self, rank: Rank) -> None:
        """Keep nothing of a worker's any more."""
        self._staging.forget(rank)
        self._store.forget(rank)

    def _trained(self, operation: str) -> Training:
        if self._training is None:
            raise TablesNotDeclaredError(operation=operation)
        mode = self._training.mode
        if operation not in mode.operations:
            raise OperationModeError(operation=operation, mode=mode.name)
        return self._training

    async def _build(self, declared: DeclareRequest) -> list[Table]:
        """Return the tables that are missing, made beside the event loop."""
        new = self._check_declared(declared)
        storages = {spec.storage for spec in new if spec.kind == "sparse"}
        await compile_missing(parts_of(storages, declared.wire), self._clock)
        for spec in new:
            loads = partial(warm, spec, declared.wire)
            await self._owners.run([Job(0, COMPILING_ROWS, loads)])
        return [await asyncio.to_thread(self._store.build, spec) for spec in new]

    async def _begin(self, terms: Terms) -> Training:
        """Return a training, and apply to it what is known of the job already."""
        machine = Machine(
            terms,
            elastic=self._elastic,
            returning=self._returning,
            store=self._store,
            owners=self._owners,
        )
        machine.origin = self._checkpoints.origin
        journal = None
        if self._persistence is not None:
            copies = partial(self._copies, has_disk=True)
            journal = await self._persistence.begin(machine, copies=copies)
            self._await_proposal(journal)
        elif self._durable is not None:
            journal = Journal(
                machine.identities,
                copies=self._copies(has_disk=False),
                clock=self._clock,
                stream_bytes=self._stream_bytes,
            )
        training = self._trains(machine, journal)
        self._apply_losses(training)
        return training

    def _apply_losses(self, training: Training) -> None:
        """Apply to a training what is known of the job already."""
        for rank, incarnation in self._lost.items():
            training.execute(Lose(rank, incarnation))
        if self._failure is not None:
            training.fail(self._failure)

    def _await_proposal(self, journal: Journal) -> None:
        """Report nothing durable before the registry names the disk for this term."""
        if self._proposes:
            now = self._clock.monotonic()
            journal.copies.inherit((), position=journal.position, now=now)

    def _check_declared(self, declared: DeclareRequest) -> list[TableSpec]:
        kind = kind_of(declared.mode)
        alone = kind.replaceable and declared.worker_num == 1
        if self._elastic and kind.takes_all and not alone:
            raise ElasticModeError(mode=declared.mode)
        is_kept = self._persistence is not None or self._replicas > 0
        if declared.sync_batch_norm and is_kept:
            raise NotKeptError(what="sync_batch_norm")  # sums of a step aren't commands
        if self._training is not None:
            self._training.terms.check_same(Terms.of(declared), elastic=self._elastic)
        for spec in declared.specs:
            kind.check_rule(spec)
        new = self._store.check(declared.specs)
        self._store.check_limits(new)
        return new
