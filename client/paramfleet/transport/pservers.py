"""The pservers of a job, as one: every operation goes to all of them at once."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, TypeVar

from numpy.typing import NDArray

from paramfleet.config.dense_limits import DenseLimits
from paramfleet.telemetry.traffic import OF_TABLES, Traffic
from paramfleet.transport.direct import Direct, Outcome
from paramfleet.transport.outbox import Outbox
from paramfleet.transport.owner import ASKED_AGAIN, Owner
from paramfleet.transport.requests import Author, ReadPlan
from paramfleet.transport.staging import Ahead
from paramfleet_shared.checkpoint.cuts import PushesHeldError
from paramfleet_shared.discovery.errors import NoRedisError
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.errors import FleetError
from paramfleet_shared.errors import served as served_errors  # noqa: F401 - known by their codes
from paramfleet_shared.errors.tables import StagedGoneError
from paramfleet_shared.net.http2.stream import Held
from paramfleet_shared.net.rpc.connection.direct import Waker
from paramfleet_shared.net.rpc.faults import NO_FAULTS, FaultHook
from paramfleet_shared.net.rpc.tasks import hop, is_here
from paramfleet_shared.net.rpc.tracing import Tracing, open_channel
from paramfleet_shared.net.secret import JobSecret
from paramfleet_shared.net.tls import Tls
from paramfleet_shared.net.wire.identity import ChangeIdentity
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.settings.failpoints import failpoint
from paramfleet_shared.system.clock import Clock
from paramfleet_shared.tables.rows.batch import RowIds

__all__ = ["PIECES_AT_ONCE", "PServers", "answers_of", "both", "ends_of"]

T = TypeVar("T")

Locate = Callable[[], Awaitable[Placement | None]]
"""Reads the placement as it is now; None while there is none."""

RETURN_PATIENCE_S = 120.0
"""Seconds that another process of a pserver is waited for; the job ends earlier if the
coordinator gives it up."""

PIECES_AT_ONCE = 2
"""Pieces of dense tables that are on their way at once, to or from each pserver."""


async def both(first: Coroutine[None, None, None], second: Coroutine[None, None, T]) -> T:
    """Run two coroutines at once, and return what the second returns.

    Raises:
        Exception: the first that one raises; the other is cancelled.
    """
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(first)
            task = group.create_task(second)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return task.result()


async def ends_of(works: Iterator[Coroutine[None, None, None]], *, at_once: int) -> None:
    """Run coroutines, so many at once, and wait for the end of all.

    Cancellation, and an error of one, cancel the others.

    Raises:
        Exception: the first that one raises.
    """

    async def work_off() -> None:
        for work in works:
            await work

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(work_off())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


def answers_of(outcomes: Sequence[Outcome | BaseException]) -> list[Message]:
    """Return answers, or raise the first error among them."""
    answers = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        assert outcome is not None, "everybody was asked"
        answers.append(outcome)
    return answers


class PServers:
    """One channel a pserver.

    The loop that makes it owns it. Cancellation: a call that was sent may have
    had its effect.

    Args:
        placement: Endpoints and shards.
        author: This worker.
        locate: Reads the placement as it is now, None while there is none: pservers that keep
            their training on a disk may come back elsewhere. If not given, they never do.
        clock: For deadlines.
        call_timeout_s: Deadline of a call that waits for nobody.
        step_timeout_s: Deadline of a call that waits for other workers.
        tls: This worker's certificate; None speaks without.
        secret: What both ends prove to know; None asks for nothing.
        tracing: Make a span of each call; None makes none.
        faults: By pserver, what breaks calls of a test; nothing does if not given.
    """

    def __init__(  # noqa: PLR0913 (all but the first by keyword)
        self,
        placement: Placement,
        *,
        author: Author,
        locate: Locate | None = None,
        clock: Clock,
        call_timeout_s: float,
        step_timeout_s: float,
        tls: Tls | None = None,
        secret: JobSecret | None = None,
        tracing: Tracing | None = None,
        faults: Callable[[int], FaultHook] = lambda _: NO_FAULTS,
    ) -> None:
        self._clock = clock
        self._now = clock.monotonic
        self._direct: Direct | None = None
        self.dense = DenseLimits()
        """How much of dense tables travels in one request."""
        self.divides = False
        """Whether the job's dense tables are larger than one request carries."""
        self._numbers = count(1)
        self._given_up: list[ChangeIdentity] = []
        """Changes that are to be voided."""
        self._going_ahead = asyncio.Lock()
        self.placement = placement
        self.call_timeout_s = call_timeout_s
        self.step_timeout_s = step_timeout_s
        self.outbox = Outbox(placement)
        """Changes that aren't on the disks of all pservers, where these have some."""
        self._author = author
        self._locate = locate or self._locate_here
        self.traffic = Traffic(self._num_held)
        self._channels = [
            open_channel(
                endpoint,
                tracing=tracing,
                peer=f"pserver {index}",
                clock=clock,
                count=self.traffic.count,
                tls=tls and tls.expects("pserver"),
                secret=secret,
                faults=faults(index),
                resolve=None if locate is None else partial(self._find, index),
            )
            for index, endpoint in enumerate(placement.endpoints)
        ]
        self._owners = [
            Owner(
                index,
                channel,
                outbox=self.outbox,
                author=author,
                locate=self._locate,
                clock=clock,
                call_timeout_s=call_timeout_s,
                patience_s=RETURN_PATIENCE_S,
            )
            for index, channel in enumerate(self._channels)
        ]

    async def _locate_here(self) -> Placement | None:
        return self.placement

    async def _find(self, server: int) -> str:
        """Return where a pserver is, as far as is known: without a registry where it was."""
        with suppress(NoRedisError):
            placement = await self._locate()
            if placement is not None and placement.epoch > self.placement.epoch:
                self.placement = placement
        return self.placement.endpoints[server]

    def follow(self, placement: Placement) -> None:
        """Go to the processes that a newer placement names."""
        if self._is_addressed:
            for owner in self._owners:
                owner.follow(placement)
            if self._direct is not None and not self._are_ready():
                self._direct.waker.wake()  # it may wait for a process that was replaced

    @property
    def _is_addressed(self) -> bool:
        """Return whether requests say for which process they are: others may take over."""
        return self.outbox.is_on or self.placement.moves

    async def settle(self) -> None:
        """Return when all that this worker has sent is on the disks of all pservers."""
        while self.outbox:
            await self._settle_once()

    async def _settle_once(self) -> None:
        """Return when all that the pservers have executed is on their disks."""
        await self.call_all("settle", self._author.fields(), timeout_s=self.step_timeout_s)

    def _are_ready(self) -> bool:
        return all(owner.is_ready for owner in self._owners)

    async def call(
        self,
        op: str,
        messages: Sequence[Message],
        *,
        timeout_s: float | None = None,
        waits: bool = False,
    ) -> list[Message]:
        """Send one message to each pserver; return their answers in the same order.

        Every operation of a pserver may be repeated (pushes carry an identity), so
        a lost answer is asked for again until the deadline.

        Args:
            op: The operation.
            messages: One for each pserver.
            timeout_s: None takes ``call_timeout_s``.
            waits: Whether it waits for other workers: then its time says nothing of the way.

        Raises:
            FleetError: the first error of a pserver, once all have answered or failed.
        """
        if self.divides:
            ahead = Ahead(op, messages, self.dense, self._numbers)
            if ahead:
                return await self._call_after(ahead, op, timeout_s)
        began = self._now()
        answers = await self._call(op, messages, timeout_s)
        if op in OF_TABLES:
            if not waits:
                self.traffic.count_time(op, self._now() - began)
            self.traffic.count_tables(messages, answers)
        return answers

    async def _call_after(
        self, ahead: Ahead, op: str, timeout_s: float | None
    ) -> list[Message]:
        """Send what is too large in pieces, then the messages that name it.

        One call at a time: a pserver keeps no more of a worker.
        """
        began, answers = self._now(), None
        async with self._going_ahead:
            for is_last in (False, False, True):
                await ends_of(self._send_pieces(ahead), at_once=PIECES_AT_ONCE)
                answers = await self._call_naming(ahead, op, timeout_s, insists=is_last)
                if answers is not None:
                    break
        assert answers is not None, "the last one insisted"
        if op in OF_TABLES:
            self.traffic.count_time(op, self._now() - began)
            self.traffic.count_tables(ahead.messages(), answers)
        return answers

    async def _call_naming(
        self, ahead: Ahead, op: str, timeout_s: float | None, *, insists: bool
    ) -> list[Message] | None:
        """Return the answers; None if a pserver lacks the pieces, as when it was asked twice.

        Raises:
            StagedGoneError: in that case, if the call insists.
        """
        try:
            return await self._call(op, ahead.messages(), timeout_s)
        except StagedGoneError:
            if insists:
                raise
            return None

    def _send_pieces(self, ahead: Ahead) -> Iterator[Coroutine[None, None, None]]:
        for table, messages in ahead.pieces():
            yield self._send_piece(table, messages)

    async def _send_piece(self, table: str, messages: list[Message]) -> None:
        await self._call("stage", messages, None)
        self.traffic.count_pieces(table, messages)

    async def _call(
        self, op: str, messages: Sequence[Message], timeout_s: float | None
    ) -> list[Message]:
        limit_s = self.call_timeout_s if timeout_s is None else timeout_s
        if is_here():
            return await self._call_from_here(op, messages, limit_s)
        if len(self._channels) == 1:  # needs no task of its own
            return [await self._ask(0, op, messages[0], timeout_s=limit_s)]
        return answers_of(
            await asyncio.gather(
                *(
                    self._ask(server, op, message, timeout_s=limit_s)
                    for server, message in enumerate(messages)
                ),
                return_exceptions=True,
            )
        )

    async def _ask(
        self,
        server: int,
        op: str,
        message: Message,
        *,
        timeout_s: float,
        sent_before: bool = False,
    ) -> Message:
        """Ask one pserver; where its training outlives its process, whichever that is."""
        asked = self._owners[server].ask if self._is_addressed else self._channels[server].call
        answer = await asked(op, message, timeout_s=timeout_s, sent_before=sent_before)
        if not self._is_addressed and "durable" in answer.fields:
            self.outbox.note(server, self.outbox.term(server), message, answer)
        return answer

    async def _call_from_here(
        self, op: str, messages: Sequence[Message], limit_s: float
    ) -> list[Message]:
        """Call by the thread that waits, and by the event loop what doesn't come back."""
        direct, began = self._direct, self._now()
        outcomes: list[Outcome | BaseException] = [None] * len(messages)
        if direct is not None and not self._is_addressed:
            outcomes[:] = direct.call(op, messages, limit_s)
        elif direct is not None and self._are_ready():
            outcomes[:] = self._call_addressed(direct, op, messages, limit_s)
        missing = [index for index, outcome in enumerate(outcomes) if outcome is None]
        if not missing:
            return answers_of(outcomes)
        await hop()
        left_s = max(0.001, limit_s - (self._now() - began))
        found = await asyncio.gather(
            *(
                self._ask(
                    index, op, messages[index], timeout_s=left_s, sent_before=direct is not None
                )
                for index in missing
            ),
            return_exceptions=True,
        )
        for index, outcome in zip(missing, found, strict=True):
            outcomes[index] = outcome
        answers = answers_of(outcomes)
        if direct is not None and direct.is_due:
            await direct.open()
        return answers

    def _call_addressed(
        self, direct: Direct, op: str, messages: Sequence[Message], limit_s: float
    ) -> list[Outcome]:
        """Call by the thread that waits; None for what another process may have to answer."""
        sent = [o.addressed(m) for o, m in zip(self._owners, messages, strict=True)]
        outcomes = direct.call(op, sent, limit_s)
        for server, outcome in enumerate(outcomes):
            if isinstance(outcome, Message):
                if not self._owners[server].note(sent[server], outcome):
                    outcomes[server] = None
            elif isinstance(outcome, ASKED_AGAIN):
                outcomes[server] = None
        return outcomes

    async def open_direct(self) -> Waker:
        """Let threads that wait for calls make them; return what ends their waits."""
        self._direct = direct = Direct(self._channels, self._clock)
        await direct.open()
        return direct.waker

    async def change(
        self,
        op: str,
        messages: Sequence[Message],
        *,
        corrected: Callable[[FleetError], Sequence[Message] | None] = lambda _: None,
        rows: Sequence[RowIds | None] = (),
    ) -> list[Message]:
        """Call an operation that changes tables; repeat it while a checkpoint holds it up.

        It is given up if it fails, and voided before the next one is sent.

        Args:
            op: The operation.
            messages: One for each pserver, all of one identity.
            corrected: Returns what is sent instead after a refusal, once, with the same
                identity; None to give up.
            rows: By part, the rows of those that name them by a pull.

        Raises:
            PushesHeldError: if it was held up for longer than any checkpoint may take.
            FleetError: as ``call``.
        """
        began = self._now()
        try:
            await self._void_given_up()
            while True:
                try:
                    return await self._kept(op, messages, rows)
                except PushesHeldError:
                    if self._now() - began > 2 * self.step_timeout_s:
                        raise
                except FleetError as refusal:
                    instead = corrected(refusal)
                    if instead is None:
                        raise
                    messages, corrected = instead, lambda _: None
        except BaseException:
            self.give_up(messages[0].fields)
            raise

    async def _kept(
        self,
        op: str,
        messages: Sequence[Message],
        rows: Sequence[RowIds | None],
        *,
        timeout_s: float | None = None,
        waits: bool = False,
    ) -> list[Message]:
        """Call an operation that changes tables, and keep the change until it is durable."""
        if not self.outbox.is_on:
            return await self.call(op, messages, timeout_s=timeout_s, waits=waits)
        goes_ahead = self.divides and Ahead(op, messages, self.dense, count())
        if goes_ahead or not self.outbox.takes(messages):
            durably = [replace(m, fields={**m.fields, "durably": True}) for m in messages]
            return await self.call(op, durably, timeout_s=timeout_s, waits=waits)
        while not self.outbox.may_add(int(messages[0].fields["sequence"])):
            if is_here():
                await hop()
            await self._settle_once()
        entry = self.outbox.add(op, messages, rows)
        failpoint("before_send")
        try:
            answers = await self.call(op, messages, timeout_s=timeout_s, waits=waits)
        except BaseException:
            self.outbox.drop(entry)
            raise
        self.outbox.own(entry)
        failpoint("after_answer")
        return answers

    def give_up(self, change: Mapping[str, Any]) -> None:
        """Have the pservers await a change no more: it was refused, or couldn't be sent.

        Those that have taken it keep it.

        Args:
            change: Fields that name it.
        """
        self._given_up.append(ChangeIdentity.of(change))

    async def _void_given_up(self) -> None:
        while self._given_up:
            change = self._given_up.pop()
            try:
                await self.call_all("void", change.fields())
            except BaseException:
                self._given_up.append(change)
                raise

    async def pull(
        self,
        plan: ReadPlan,
        *,
        rank: int,
        min_step: int,
        incarnation: int | None = None,
        version: int | None = None,
        confirms: int | None = None,
    ) -> list[Message]:
        """Ask every pserver for its part of a plan.

        Args:
            plan: What to read.
            rank: Who asks.
            min_step: Steps that must be applied before; 0 waits for no other worker.
            incarnation: Whose push may name the rows that are kept; needed where some are.
            version: Steps that the values have, where others may have taken more; None for
                all that are applied.
            confirms: Before which step all of this worker's parts are with every pserver, where
                these wait for that.
        """
        timeout_s = self.step_timeout_s if min_step else self.call_timeout_s
        messages = plan.messages(
            rank=rank, min_step=min_step, incarnation=incarnation, version=version
        )
        if confirms is not None:
            said = {"confirms": confirms, "incarnation": incarnation}
            messages = [replace(m, fields={**m.fields, **said}) for m in messages]
        return await self.call("pull", messages, timeout_s=timeout_s, waits=min_step > 0)

    async def step(
        self, messages: Sequence[Message], *, rows: Sequence[RowIds | None] = ()
    ) -> tuple[list[Message], float]:
        """Push a step of sync to every pserver, and pull what it has made of the tables.

        If it fails, the caller sends it again by ``change``, or gives it up.

        Args:
            messages: One for each pserver.
            rows: By part of the push, the rows of those that name them by a pull.

        Returns:
            The answers, and how many seconds of the call were spent waiting for other workers.
        """
        await self._void_given_up()
        began = self._now()
        answers = await self._kept(
            "step", messages, rows, timeout_s=self.step_timeout_s, waits=True
        )
        took = self._now() - began
        waited = min(took, max(float(answer.fields["waited_s"]) for answer in answers))
        self.traffic.count_time("step", took - waited)
        return answers, waited

    async def call_all(
        self, op: str, fields: dict[str, Any], *, timeout_s: float | None = None
    ) -> list[Message]:
        """Send the same fields to every pserver."""
        message = Message(fields=fields, tensors={})
        return await self.call(op, [message] * len(self._channels), timeout_s=timeout_s)

    async def call_one(
        self,
        server: int,
        op: str,
        fields: dict[str, Any],
        *,
        timeout_s: float,
        tensors: Mapping[str, NDArray[Any]] | None = None,
    ) -> Message:
        """Send fields, and tensors if there are any, to one pserver."""
        message = Message(fields=fields, tensors=tensors or {})
        return await self._ask(server, op, message, timeout_s=timeout_s)

    async def total(self, message: Message) -> Message:
        """Have the first pserver add up the workers' parts of a sum, and wait for all."""
        return await self._ask(0, "total", message, timeout_s=self.step_timeout_s)

    async def norm(self, messages: Sequence[Message]) -> list[Message]:
        """Have the pservers merge the workers' gradients, and wait for all of their parts."""
        return await self.call("norm", messages, timeout_s=self.step_timeout_s, waits=True)

    def _num_held(self) -> Held:
        held = [channel.num_held for channel in self._channels]
        return Held(sum(each.receiving for each in held), sum(each.sending for each in held))

    async def close(self) -> None:
        """Close every channel."""
        if self._direct is not None:
            self._direct.close()
            self._direct = None
        for channel in self._channels:
            await channel.close()
