"""One pserver as a worker knows it: the way to its process, and to the next one.

A request says for which process it is. When another one has taken over, the worker joins there,
and sends again what that one lacks, before anything else: so it reads what it has written.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from paramfleet.transport.outbox import Outbox
from paramfleet.transport.requests import Author
from paramfleet_shared.discovery.errors import FencedError, NoRedisError
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.errors import (
    FleetError,
    IntegrityError,
    OutcomeUnknownError,
    UnavailableError,
)
from paramfleet_shared.errors.logs import (
    DiskFailingError,
    DiskFullError,
    LogBehindError,
    LogClosedError,
    NotDurableError,
    OtherTermError,
)
from paramfleet_shared.errors.served import TablesNotDeclaredError, UnknownWorkerError
from paramfleet_shared.errors.tables import ColdDiskError
from paramfleet_shared.net.rpc.call_errors import PeerUnreachableError
from paramfleet_shared.net.rpc.client import (
    Channel,
    ConnectionLostError,
    PeerUnprovenError,
)
from paramfleet_shared.net.rpc.deadlines import DeadlineExceededError
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.system.clock import Clock

__all__ = ["ASKED_AGAIN", "LostChangesError", "Owner"]

log = logging.getLogger(__name__)

_POLL_S = 0.1
"""Seconds between two looks for the next process, and between two attempts at a full disk."""

_REPLACED = (FencedError, PeerUnprovenError)
"""Errors of where a process was before: it was replaced, as the registry told it, or another
program listens there now."""

_AGAIN = (ColdDiskError, LogClosedError, OtherTermError, PeerUnreachableError, *_REPLACED)
"""Errors of a process that is ending, or that ends now: the next one is awaited."""

_PASSING = (UnavailableError, OutcomeUnknownError, *_REPLACED)
"""Errors for which the way to the next process is tried again."""

_DISK = (DiskFullError, DiskFailingError, LogBehindError)
"""Errors that pass when the disk takes more."""

ASKED_AGAIN = (*_AGAIN, *_DISK, DeadlineExceededError)
"""Outcomes of a call that ``Owner.ask`` may better."""

ADDRESS = "for_server"
"""Field of a request: index and incarnation of the pserver that it is for."""


class LostChangesError(IntegrityError):
    """A pserver came back without changes that it had reported to be on its disk."""

    code = "integrity.lost_changes"
    server: int
    found: int
    durable: int
    sentence = (
        "pserver {server} was restarted with this worker's changes before {found}, but had "
        "reported all changes before {durable} as durable, as if its data folder was restored "
        "from an older copy: resume from a checkpoint"
    )


class _Times:
    """How long one call has taken, without what nobody was there to serve it for.

    Args:
        now: The time.
        timeout_s: Of the call.
    """

    def __init__(self, now: float, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._silent_since: float | None = None
        self.begin(now)

    def begin(self, now: float) -> None:
        """Count from now on."""
        self._began = now

    def leave_out(self, seconds: float) -> None:
        """Don't count so many seconds until now."""
        self._began += seconds

    def left_s(self, now: float) -> float:
        """Return the seconds that are left, at least a moment."""
        return max(0.001, self._began + self._timeout_s - now)

    def is_silent(self, now: float, patience_s: float) -> bool:
        """Note that nobody serves; return whether that has lasted too long."""
        if self._silent_since is None:
            self._silent_since = now
        self.begin(now)
        return now - self._silent_since > patience_s


class Owner:
    """The way to one pserver. Used from one event loop, but where methods say otherwise.

    Args:
        server: Its index.
        channel: To whichever process it is.
        outbox: What it may lack after its death.
        author: Who writes.
        locate: Reads the placement as it is now; None while there is none.
        clock: Time.
        call_timeout_s: Of a call that waits for nobody.
        patience_s: How long another process is waited for.
    """

    def __init__(  # noqa: PLR0913 (all but the first two by keyword)
        self,
        server: int,
        channel: Channel,
        *,
        outbox: Outbox,
        author: Author,
        locate: Callable[[], Awaitable[Placement | None]],
        clock: Clock,
        call_timeout_s: float,
        patience_s: float,
    ) -> None:
        self._server = server
        self._channel = channel
        self._outbox = outbox
        self._author = author
        self._locate = locate
        self._clock = clock
        self._call_timeout_s = call_timeout_s
        self._patience_s = patience_s
        self._has_answered = False
        self._returning: asyncio.Task[None] | None = None
        self._failure: FleetError | None = None

    @property
    def is_ready(self) -> bool:
        """Return whether requests may be sent; any thread may ask."""
        return self._returning is None and self._failure is None

    def addressed(self, message: Message) -> Message:
        """Return a message for the process that is known; any thread may ask."""
        to = [self._server, self._outbox.term(self._server)]
        return Message(fields={**message.fields, ADDRESS: to}, tensors=message.tensors)

    def note(self, message: Message, answer: Message) -> bool:
        """Take note of the answer to an addressed message; any thread may call it.

        Returns:
            False if the process that answered was replaced: ask again.
        """
        _, term = message.fields[ADDRESS]
        self._has_answered = True
        return self._outbox.note(self._server, term, message, answer)

    async def ask(
        self, op: str, message: Message, *, timeout_s: float, sent_before: bool = False
    ) -> Message:
        """Ask the pserver, whichever process it is in the end.

        The time in which none serves doesn't count, up to the patience.

        Raises:
            LostChangesError: if it came back without what it had reported durable.
            FleetError: as ``Channel.call``, or why the way to the next process failed.
        """
        times = _Times(self._clock.monotonic(), timeout_s)
        while True:
            if not self.is_ready:
                times.leave_out(await self._wait_returned())
            to, now = self.addressed(message), self._clock.monotonic()
            try:
                answer = await self._channel.call(
                    op, to, timeout_s=times.left_s(now), sent_before=sent_before
                )
                if self.note(to, answer):
                    return answer
            except FleetError as error:
                await self._prepare_another(to, error, times)
            sent_before = False

    def follow(self, placement: Placement) -> None:
        """Go to the process that a placement names, if it is a newer one."""
        if placement.term_of(self._server) > self._outbox.term(self._server):
            self._begin_return()

    async def _prepare_another(
        self, asked: Message, error: FleetError, times: "_Times"
    ) -> None:
        """Wait until a call may be better another time; raise its error if it won't."""
        now = self._clock.monotonic()
        if isinstance(error, PeerUnprovenError) and not self._has_answered:
            raise error  # this worker has another secret
        if isinstance(error, _AGAIN):
            if times.is_silent(now, self._patience_s):
                raise error
            if not await self._look(asked):
                await self._clock.sleep(_POLL_S)
        elif isinstance(error, _DISK) and times.left_s(now) > _POLL_S:
            await self._clock.sleep(_POLL_S)
        elif isinstance(error, NotDurableError | DeadlineExceededError | ConnectionLostError):
            if not await self._look(asked):  # it is there, and slow
                raise error
            times.begin(self._clock.monotonic())
        else:
            raise error

    async def _look(self, asked: Message) -> bool:
        """Return whether another process has taken over since a message was made."""
        _, term = asked.fields[ADDRESS]
        if self._outbox.term(self._server) > term or self._returning is not None:
            return True
        try:
            placement = await self._locate()
        except NoRedisError:
            return False
        if placement is None or placement.term_of(self._server) <= term:
            return False
        self._begin_return()
        return True

    def _begin_return(self) -> None:
        if self._returning is None:
            work = self._return()
            self._returning = asyncio.get_running_loop().create_task(work)

    async def _wait_returned(self) -> float:
        """Wait until the next process has what it lacked; return for how many seconds.

        Raises:
            FleetError: why it won't.
        """
        began = self._clock.monotonic()
        while self._returning is not None:
            await asyncio.wait((self._returning,))
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        return self._clock.monotonic() - began

    async def _return(self) -> None:
        """Join the process that has taken over, and send what it lacks; note why not."""
        deadline = self._clock.monotonic() + self._patience_s
        error = await self._try_catch_up()
        while isinstance(error, _PASSING) and self._clock.monotonic() < deadline:
            await self._clock.sleep(_POLL_S)
            error = await self._try_catch_up()
        self._failure, self._returning = error, None

    async def _try_catch_up(self) -> FleetError | None:
        """Return why it failed; None if it didn't."""
        try:
            await self._catch_up()
        except FleetError as error:
            return error
        return None

    async def _catch_up(self) -> None:
        """Join the process that has taken over, and send what it lacks.

        Raises:
            LostChangesError: if that is something that was reported durable.
            UnknownWorkerError: if this worker takes no part any more.
        """
        placement = await self._locate()
        assert placement is not None, "there was one when this began"
        term = placement.term_of(self._server)
        self._outbox.begin_term(self._server, term)
        self._channel.reset()  # a process that was replaced may still hold requests
        author = Message(fields=self._author.fields())
        try:
            joined = await self._send("join", author)
        except TablesNotDeclaredError as error:
            durable = self._outbox.durable(self._server)
            if durable is None:
                return  # no training had begun there: the declaration is still to come
            raise LostChangesError(server=self._server, found=0, durable=durable) from error
        except UnknownWorkerError:
            if self._outbox.durable(self._server) is None:
                return  # others had declared there, and this worker's declaration is to come
            raise
        taken = int(joined.fields["taken"])
        if self._outbox.is_lost(self._server, taken):
            known = self._outbox.durable(self._server) or 0
            raise LostChangesError(server=self._server, found=taken, durable=known)
        lacking = self._outbox.lacking(self._server, taken)
        for entry in lacking:
            message = self._outbox.message(entry, self._server)
            await self._send(entry.op, message)
        facts = {"server": self._server, "incarnation": term, "sent_again": len(lacking)}
        level = logging.WARNING if lacking else logging.INFO  # all is there if it only moved
        log.log(level, "worker.pserver_returned", extra=facts)

    async def _send(self, op: str, message: Message) -> Message:
        to = self.addressed(message)
        answer = await self._channel.call(op, to, timeout_s=self._call_timeout_s)
        if not self.note(to, answer):
            _, term = to.fields[ADDRESS]
            raise OtherTermError(index=self._server, term=term, wanted=[self._server, term])
        return answer
