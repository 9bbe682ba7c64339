"""One connection of a ``Channel``: requests out, answers to whoever waits."""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Hashable, Sequence

from typing_extensions import override

from paramfleet_shared.errors import OutcomeUnknownError
from paramfleet_shared.net.http2.client import ClientConnection
from paramfleet_shared.net.http2.events import (
    ConnectionEnded,
    Event,
    PeerLeaving,
    PeerReady,
    ResponseReceived,
    ResponseTooLarge,
    StreamLost,
)
from paramfleet_shared.net.http2.frames import ErrorCode
from paramfleet_shared.net.http2.headers.hpack_memo import Header
from paramfleet_shared.net.rpc.alarm import Alarm, DeadlinePassedError
from paramfleet_shared.net.rpc.connection.protocol import Http2Protocol
from paramfleet_shared.net.wire.limits import BodyTooLargeError, Limits
from paramfleet_shared.net.wire.message import Buffer
from paramfleet_shared.system.clock import Clock

__all__ = ["CallLostError", "ConnectionLostError", "Link"]

_PROBE = b"pf-alive"
_MEMO_ENTRIES = 512

_HOLD_S = 0.005
"""Seconds that a new link's first bytes wait for a request, which nearly always follows."""


class CallLostError(Exception):
    """A call ended without an answer; the channel decides what follows."""

    def __init__(self, reason: str, *, processed: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.processed = processed
        """False: the server surely did nothing."""


class ConnectionLostError(OutcomeUnknownError):
    """The connection broke after the call was sent; it may have had its effect."""

    code = "outcome_unknown.connection_lost"
    peer: str
    operation: str
    reason: str = ""

    @override
    def describe(self) -> str:
        return f"the connection to {self.peer} was lost while it handled {self.operation!r}" + (
            f": {self.reason}" if self.reason else ""
        )


class Link(Http2Protocol[ClientConnection]):
    """One HTTP/2 connection, from its socket's opening to its end."""

    def __init__(self, limits: Limits, clock: Clock, *, authority: bytes) -> None:
        super().__init__(ClientConnection(limits, clock.monotonic()), limits, clock)
        self.authority = authority
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[str | None] = self._loop.create_future()
        self._answers: dict[int, asyncio.Future[ResponseReceived]] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._alarm = Alarm()
        self._blocks: dict[Hashable, bytes] = {}
        self._probe: asyncio.TimerHandle | None = None
        self._holding: asyncio.TimerHandle | None = None

    @property
    def usable(self) -> bool:
        """Return whether new calls may be sent here."""
        return self.connection.end_reason is None and not self.connection.draining

    @property
    def free(self) -> bool:
        """Return whether one more call may be sent here at once."""
        connection = self.connection
        return (
            connection.may_request
            and connection.end_reason is None
            and not connection.draining
            and not self._waiting
        )

    async def wait_ready(self) -> None:
        """Wait for the server's settings: then it uses HTTP/2, and is alive.

        Raises:
            CallLostError: if the connection ends before.
        """
        reason = await self._ready
        if reason is not None:
            raise CallLostError(reason, processed=False)

    async def wait_turn(self) -> None:
        """Wait until the server takes one more call; ``request`` must follow at once.

        Raises:
            CallLostError: if this link takes no more calls.
            CancelledError: if the caller is cancelled.
        """
        connection = self.connection
        while self.usable and not connection.may_request:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # it was our turn, and we don't take it
                    self._wake_next()
                raise
        if not self.usable:
            raise CallLostError(
                connection.end_reason or "the server is leaving", processed=False
            )

    def block_of(self, key: Hashable, headers: Callable[[], Sequence[Header]]) -> bytes:
        """Return encoded headers, made once for each ``key``."""
        block = self._blocks.get(key)
        if block is None:
            if len(self._blocks) >= _MEMO_ENTRIES:
                self._blocks.clear()
            block = self._blocks[key] = self.connection.encode(headers())
        return block

    async def request(
        self, block: bytes, body: Sequence[Buffer], timeout_s: float | None = None
    ) -> ResponseReceived:
        """Send a request, and return its answer.

        Cancellation: the server is asked to cancel, and the outcome is unknown; the same
        if no answer came within ``timeout_s``.

        Raises:
            CallLostError: if the stream or the connection ends without an answer.
            CancelledError: if the caller is cancelled.
            DeadlinePassedError: if there is no answer after ``timeout_s``; None: never.
            BodyTooLargeError: if the answer is over our limit.
        """
        connection = self.connection
        stream_id = connection.request_encoded(block, body, self._clock.monotonic())
        answer: asyncio.Future[ResponseReceived] = self._loop.create_future()
        self._answers[stream_id] = answer
        if timeout_s is not None:
            self._alarm.add(answer, timeout_s)
        if self._holding is not None:
            self._holding.cancel()
            self._release()
        else:
            self.flush()
        try:
            return await answer
        except (asyncio.CancelledError, DeadlinePassedError):
            if connection.end_reason is None:
                connection.reset(stream_id, ErrorCode.CANCEL)
                self.flush()
            raise
        finally:
            self._alarm.drop(answer)
            self._answers.pop(stream_id, None)
            del answer  # its error's traceback holds this frame, and all that the call sent
            if self._waiting:
                self._wake_next()
            if connection.draining and not connection.num_streams:
                self.close()

    def hold(self) -> None:
        """Keep what is to be written for the first request, which is due at once."""
        self._holding = self._loop.call_later(_HOLD_S, self._release)

    def detach(self) -> tuple[socket.socket, ClientConnection] | None:
        """Give the socket away, with what is known of its connection; this link is over then.

        Returns:
            None if a call or bytes are under way, or it speaks TLS: then the link goes on.
            None, too, if the server has gone.
        """
        transport, connection = self._transport, self.connection
        if (
            transport is None
            or transport.is_closing()
            or not self.free
            or connection.num_streams
            or (connection.has_output and self._holding is None)
            or transport.get_write_buffer_size()
            or transport.get_extra_info("ssl_object") is not None
        ):
            return None
        sock = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        self._transport = None
        transport.set_protocol(asyncio.Protocol())  # which isn't interested in its end
        transport.abort()
        self._alarm.close()
        self.closed.set_result(None)
        if self._holding is not None:
            self._holding.cancel()
        try:
            for buffer in connection.take_buffers(self._clock.monotonic()):
                sock.sendall(buffer)  # what was held: some hundred bytes, the first of all
        except OSError:
            sock.close()
            return None
        return sock, connection

    def probe(self) -> None:
        """Cut the connection unless the server shows a sign of life soon."""
        if self._probe is None and self.connection.end_reason is None:
            self.connection.ping(_PROBE)
            self._probe = asyncio.get_running_loop().call_later(
                self._limits.probe_timeout_s, self._judge_probe, self.num_received
            )
            self.flush()

    @override
    def on_event(self, event: Event) -> None:
        if isinstance(event, ResponseReceived):  # nearly all are: no pattern is as fast
            answer = self._answers.pop(event.stream_id, None)
            if answer is not None and not answer.done():
                answer.set_result(event)
            return
        match event:
            case ResponseTooLarge(stream_id, num_bytes):
                error = BodyTooLargeError(
                    limit_bytes=self._limits.max_body_bytes, got_bytes=num_bytes
                )
                self._fail(stream_id, error)
            case StreamLost(stream_id, reason, processed):
                self._fail(stream_id, CallLostError(reason, processed=processed))
            case PeerReady():
                self._end_wait_ready(None)
                self._wake_all()
            case PeerLeaving():
                self._wake_all()
            case ConnectionEnded(reason):
                self._end_wait_ready(reason)
                self._wake_all()
            case _:
                pass

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._alarm.close()
        for timer in (self._probe, self._holding):
            if timer is not None:
                timer.cancel()

    def _release(self) -> None:
        self._holding = None
        self.resume_writing()

    def _end_wait_ready(self, reason: str | None) -> None:
        if not self._ready.done():
            self._ready.set_result(reason)

    def _fail(self, stream_id: int, error: Exception) -> None:
        answer = self._answers.pop(stream_id, None)
        if answer is not None and not answer.done():
            answer.set_exception(error)

    def _wake_next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _wake_all(self) -> None:
        while self._waiting:
            self._wake_next()

    def _judge_probe(self, num_received: int) -> None:
        self._probe = None
        if self.num_received == num_received:
            self.abort("the server showed no sign of life")
