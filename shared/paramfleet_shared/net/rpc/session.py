"""One client's connection to an ``RpcServer``: requests to handlers, results to answers."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from typing_extensions import override

from paramfleet_shared.errors import ContractError, FleetError
from paramfleet_shared.net.http2.events import (
    Event,
    RequestReceived,
    RequestTooLarge,
    StreamLost,
)
from paramfleet_shared.net.http2.frames import ErrorCode
from paramfleet_shared.net.http2.headers.hpack_memo import Header
from paramfleet_shared.net.http2.server import ServerConnection
from paramfleet_shared.net.rights import Rights, require_right
from paramfleet_shared.net.rpc.answers import UnknownOperationError, error_body, status_of
from paramfleet_shared.net.rpc.connection.limits import Admission
from paramfleet_shared.net.rpc.connection.protocol import Http2Protocol
from paramfleet_shared.net.rpc.deadlines import (
    DEADLINE_HEADER,
    DeadlineExceededError,
    read_deadline,
)
from paramfleet_shared.net.rpc.faults import NO_FAULTS, FaultHook, Verdict
from paramfleet_shared.net.rpc.tasks import TaskSet, abandon
from paramfleet_shared.net.tls import TlsEnd
from paramfleet_shared.net.wire.limits import BodyTooLargeError, Limits
from paramfleet_shared.net.wire.message import Buffer, Message, decode, encode
from paramfleet_shared.system.clock import Clock

__all__ = ["CallerRefusedError", "Handler", "Request", "Service", "Session"]

logger = logging.getLogger(__name__)

_PREFIX = b"/v1/"
_NO_HEADERS: tuple[Header, ...] = ()
_ERROR_HEADERS = ((b"content-type", b"application/msgpack"),)
_JSON_HEADERS = ((b"content-type", b"application/json"),)
_TEXT_HEADERS = ((b"content-type", b"text/plain"),)
_REFUSED_BODY_BYTES = 64 << 10
"""Longest body that is read of a caller who is refused."""

_REFUSED_S = 5.0
"""Seconds that a refused caller gets to ask, and to learn why it isn't served."""


class CallerRefusedError(ContractError):
    """A server doesn't serve this caller, because of its certificate."""

    code = "contract.caller_refused"
    server: str
    caller: str
    reason: str
    sentence = "{server} refuses {caller}: {reason}"


class Request(NamedTuple):
    """One call, as its handler sees it."""

    op: str
    message: Message
    """Its tensors are views of the received body, writable and the handler's own."""
    peer: str
    """``host:port`` of the caller's socket, or which process of this machine it is."""
    deadline: float | None
    """When the caller stops waiting, in the server's ``clock.monotonic()``; None: never."""
    is_alone: bool = False
    """Whether no other call waits for this server, as far as it can see: no other call is
    here, and the one before came over the same connection."""
    role: str = ""
    """Whom the caller's certificate stands for; empty where there are no certificates."""


Handler = Callable[[Request], Message | Awaitable[Message]]
"""Serves one operation.

A plain function runs on the event loop at once, before the next frame is read:
for work below some 50 microseconds. An ``async`` one becomes a task, which is
cancelled when the deadline has passed or the caller has gone: the caller then
does not know how far it came.

The tensors of the returned message must be private to it: they are written to
the socket later, from the arrays themselves, while other handlers run. Never
return views of a live table.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Service:
    """What the sessions of one server share."""

    name: str
    handlers: Mapping[str, Handler]
    health: Callable[[], Mapping[str, Any]]
    limits: Limits
    clock: Clock
    faults: FaultHook
    tasks: TaskSet
    """Owned by the server, which ends them."""
    callers: "Callers"
    """Whose calls there are."""
    tls: TlsEnd | None
    """Whose certificates are accepted; None serves without TLS."""
    rights: Rights
    """Under TLS: which role may ask for which operation."""


class Callers:
    """The connections of one server, and who called last."""

    def __init__(self) -> None:
        self.sessions: set[Session] = set()
        self._last: Session | None = None

    def is_alone(self, session: "Session") -> bool:
        """Note that a session calls, and return whether it is the only one that does."""
        before, self._last = self._last, session
        return before is session and all(
            each.num_calls == (each is session) for each in self.sessions
        )


class _Answer(NamedTuple):
    status: int
    headers: tuple[Header, ...]
    body: list[Buffer]


_NO_ANSWER = _Answer(500, _ERROR_HEADERS, [])


class Session(Http2Protocol[ServerConnection]):
    """Serves one client; created by the listening socket."""

    def __init__(self, service: Service, admission: Admission) -> None:
        connection = ServerConnection(service.limits, service.clock.monotonic())
        connection.share = admission.share
        super().__init__(connection, service.limits, service.clock)
        self._service = service
        self._refused: CallerRefusedError | None = None
        self._showing_out: asyncio.TimerHandle | None = None
        self._peer = admission.peer.name
        self._role = ""
        self._running: dict[int, asyncio.Task[None]] = {}
        self._draining = False

    @property
    def peer(self) -> str:
        """Return who is at the other end."""
        return self._peer

    @property
    def num_calls(self) -> int:
        """Return the number of calls that have begun to come and aren't answered."""
        return self.connection.num_streams

    def drain(self) -> None:
        """Take no new calls, finish those that came, then close."""
        self._draining = True
        self.connection.drain()
        self.flush()

    def expire(self, now: float) -> None:
        """Reset the calls whose body is stuck; cut the connection if frames or reads are."""
        for event in self.connection.expire(now):
            self.on_event(event)
        if self.is_unread(now):
            self.abort("the peer doesn't read its answers")
        self.flush()

    @override
    def flush(self) -> None:
        super().flush()
        if self._draining and self.connection.has_drained():
            self._draining = False
            self.close()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._service.callers.sessions.add(self)
        if self._service.tls is not None:
            certificate = transport.get_extra_info("peercert")
            reason = self._service.tls.refusal(certificate)
            if reason:
                self._refuse(reason)
            else:
                self._role = self._service.tls.role_of(certificate)
        super().connection_made(transport)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._service.callers.sessions.discard(self)
        if self._showing_out is not None:
            self._showing_out.cancel()

    @override
    def on_event(self, event: Event) -> None:
        if isinstance(event, RequestReceived):  # nearly all are: no pattern is as fast
            self._serve(event.stream_id, event.headers, event.body)
            return
        match event:
            case RequestTooLarge(stream_id) if self._refused is not None:
                self._answer(stream_id, _answer_of_error(self._refused))
            case RequestTooLarge(stream_id, num_bytes):
                error = BodyTooLargeError(
                    limit_bytes=self._limits.max_body_bytes, got_bytes=num_bytes
                )
                self._answer(stream_id, _Answer(413, _ERROR_HEADERS, [error_body(error)]))
            case StreamLost(stream_id):
                task = self._running.get(stream_id)
                if task is not None:
                    task.cancel()
            case _:
                pass

    def _refuse(self, reason: str) -> None:
        """Serve nothing to this caller, keep little for it, and see it out."""
        server = self._service.name
        facts = {"server": server, "peer": self._peer, "reason": reason}
        logger.warning("tls.refused", extra=facts)
        self._refused = CallerRefusedError(server=server, caller=self._peer, reason=reason)
        limits = replace(
            self._limits,
            max_body_bytes=_REFUSED_BODY_BYTES,
            body_budget_bytes=_REFUSED_BODY_BYTES,
        )
        self.connection = ServerConnection(limits, self._clock.monotonic())
        self._showing_out = asyncio.get_running_loop().call_later(_REFUSED_S, self.close)

    def _serve(self, stream_id: int, headers: dict[bytes, bytes], body: memoryview) -> None:
        path, method = headers[b":path"], headers[b":method"]
        if path == b"/healthz" and method in {b"GET", b"HEAD"}:
            self._answer_health(stream_id, head=method == b"HEAD")
        elif self._refused is not None:
            self._answer(stream_id, _answer_of_error(self._refused))
        elif not path.startswith(_PREFIX):
            self._answer(stream_id, _Answer(404, _TEXT_HEADERS, [b"no such page\n"]))
        elif method != b"POST":
            self._answer(stream_id, _Answer(405, _TEXT_HEADERS, [b"use POST\n"]))
        elif len(self._running) >= 2 * self._limits.max_streams:
            self.connection.refuse(stream_id)  # handlers outlive the streams a peer resets
        else:
            self._call(stream_id, path, headers.get(DEADLINE_HEADER), body)

    def _call(
        self, stream_id: int, path: bytes, deadline_ms: bytes | None, body: memoryview
    ) -> None:
        service = self._service
        op = path[len(_PREFIX) :].decode(errors="replace")
        try:
            handler = service.handlers.get(op)
            if handler is None:
                raise UnknownOperationError(operation=op, server=service.name)
            if service.tls is not None:
                require_right(service.rights, op, role=self._role, server=service.name)
            remaining_s = read_deadline(deadline_ms)
            message = decode(body, service.limits)
        except FleetError as error:
            self._answer(stream_id, _answer_of_error(error))
            return
        deadline = None if remaining_s is None else service.clock.monotonic() + remaining_s
        is_alone = service.callers.is_alone(self)
        request = Request(op, message, self._peer, deadline, is_alone, self._role)
        if service.faults is not NO_FAULTS:
            self._start(stream_id, self._finish_with_faults(stream_id, request, handler), None)
            return
        outcome = _Outcome(op)
        with outcome:
            result = handler(request)
            if not isinstance(result, Message):
                self._start(stream_id, self._finish(stream_id, request, result), result)
                return
            self.connection.respond(stream_id, 200, _NO_HEADERS, encode(result))
            return
        self._answer(stream_id, outcome.answer)

    def _start(
        self,
        stream_id: int,
        coroutine: Coroutine[Any, Any, None],
        pending: Awaitable[Message] | None,
    ) -> None:
        """Run a call's rest as a task, known by its stream until it has ended."""

        def forget(_: asyncio.Task[None]) -> None:
            del self._running[stream_id]
            abandon(pending)  # a task cancelled before its first step never awaits it

        task = self._service.tasks.start(coroutine, name=self._service.name)
        self._running[stream_id] = task
        task.add_done_callback(forget)

    async def _finish(
        self, stream_id: int, request: Request, pending: Awaitable[Message]
    ) -> None:
        """Answer when the handler is done, or its time is over."""
        outcome = await self._outcome_of(request, pending)
        self._answer(stream_id, outcome.answer)
        self.flush()

    async def _outcome_of(
        self, request: Request, pending: Message | Awaitable[Message]
    ) -> "_Outcome":
        clock, deadline = self._service.clock, request.deadline
        started = clock.monotonic()
        timeout_s = None if deadline is None else max(0.0, deadline - started)
        outcome = _Outcome(request.op)
        with outcome:
            timer = asyncio.timeout(timeout_s)
            try:
                async with timer:
                    outcome.succeed(pending if isinstance(pending, Message) else await pending)
            except TimeoutError:
                if not timer.expired():
                    raise
                raise DeadlineExceededError(
                    peer=self._service.name,
                    operation=request.op,
                    waited_s=clock.monotonic() - started,
                ) from None
        return outcome

    async def _finish_with_faults(
        self, stream_id: int, request: Request, handler: Handler
    ) -> None:
        """As ``_call`` and ``_finish``, with a test's say about request and reply."""
        faults = self._service.faults
        answer: _Answer | None = None
        verdict = faults.on_request(request.op)
        if verdict is Verdict.HOLD:
            verdict = await faults.on_hold(request.op)
        for _ in range({Verdict.DROP: 0, Verdict.DUPLICATE: 2}.get(verdict, 1)):
            outcome = _Outcome(request.op)
            with outcome:
                pending = handler(request)
                outcome = await self._outcome_of(request, pending)
            answer = outcome.answer
        if answer is not None and await faults.on_reply(request.op) is Verdict.DROP:
            answer = None
        if answer is None:
            self.connection.reset(stream_id, ErrorCode.INTERNAL_ERROR)
        else:
            self._answer(stream_id, answer)
        self.flush()

    def _answer(self, stream_id: int, answer: _Answer) -> None:
        self.connection.respond(stream_id, answer.status, answer.headers, answer.body)

    def _answer_health(self, stream_id: int, *, head: bool) -> None:
        body = json.dumps(self._service.health()).encode() + b"\n"
        if head:
            self.connection.respond_to_head(stream_id, 200, _JSON_HEADERS, len(body))
        else:
            self._answer(stream_id, _Answer(200, _JSON_HEADERS, [body]))


class _Outcome:
    """Turns what a handler does into an answer: the one place where any error is caught."""

    __slots__ = ("_op", "answer")

    def __init__(self, op: str) -> None:
        self._op = op
        self.answer = _NO_ANSWER

    def succeed(self, reply: Message) -> None:
        self.answer = _Answer(200, _NO_HEADERS, encode(reply))

    def __enter__(self) -> None:
        pass

    def __exit__(self, _cls: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        if not isinstance(error, FleetError):
            logger.error("rpc.handler_failed", exc_info=error, extra={"op": self._op})
        self.answer = _answer_of_error(error)
        return True


def _answer_of_error(error: Exception) -> _Answer:
    return _Answer(status_of(error), _ERROR_HEADERS, [error_body(error)])
