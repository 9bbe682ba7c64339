"""Calls as spans of a trace, from the caller to the server, where a process traces.

A request carries its caller's span in the header ``traceparent`` of W3C's Trace Context, so
that the server's span is its child. Without a ``Tracing`` none of this is on a request's
path: callers make a ``Channel`` and servers a ``Session``, not those of this module.
"""

from collections.abc import Awaitable
from contextvars import ContextVar
from typing import Any, Protocol

from typing_extensions import override

from paramfleet_shared.net.http2.headers.hpack_memo import Header
from paramfleet_shared.net.rpc.client import Channel
from paramfleet_shared.net.rpc.connection.direct import DirectLink, Waker
from paramfleet_shared.net.rpc.connection.link import Link
from paramfleet_shared.net.rpc.session import Handler, Request, Session
from paramfleet_shared.net.rpc.tasks import abandon
from paramfleet_shared.net.wire.message import Message

__all__ = ["Span", "TracedChannel", "TracedSession", "Tracing", "open_channel", "traced"]

HEADER = b"traceparent"

_caller: ContextVar[bytes] = ContextVar("paramfleet_traceparent", default=b"")
"""The span on whose behalf something is done: here of a call, there of the caller."""


class Span(Protocol):
    """One call, seen from one side."""

    @property
    def traceparent(self) -> bytes:
        """What a request of this span carries."""

    def end(self, error: BaseException | None = None) -> None:
        """Say that it is over, and whether it failed."""


class Tracing(Protocol):
    """Begins spans, and sends away those that have ended."""

    def call(self, op: str, *, peer: str, endpoint: str, num_bytes: int) -> Span:
        """Begin the span of a call, below what the calling thread does."""

    def serve(self, op: str, *, peer: str, parent: bytes) -> Span:
        """Begin the span of a request; what the caller sent says below which."""


def open_channel(endpoint: str, *, tracing: Tracing | None, **settings: Any) -> Channel:
    """Return a channel that traces, if there is where to."""
    if tracing is None:
        return Channel(endpoint, **settings)
    return TracedChannel(endpoint, tracing=tracing, **settings)


class TracedChannel(Channel):
    """A channel each of whose calls is a span. Retries are of the same span."""

    def __init__(self, endpoint: str, *, tracing: Tracing, **settings: Any) -> None:
        super().__init__(endpoint, **settings)
        self._tracing = tracing

    @override
    async def call(
        self,
        op: str,
        message: Message,
        *,
        timeout_s: float,
        idempotent: bool = True,
        sent_before: bool = False,
    ) -> Message:
        num_bytes = sum(tensor.nbytes for tensor in message.tensors.values())
        span = self._tracing.call(
            op, peer=self.peer, endpoint=self.endpoint, num_bytes=num_bytes
        )
        before = _caller.set(span.traceparent)
        try:
            reply = await super().call(
                op,
                message,
                timeout_s=timeout_s,
                idempotent=idempotent,
                sent_before=sent_before,
            )
        except BaseException as error:
            span.end(error)
            raise
        finally:
            _caller.reset(before)
        span.end()
        return reply

    @override
    async def open_direct(self, waker: Waker) -> DirectLink | None:
        """Return None: what goes round the channel isn't traced."""
        return None

    @override
    def _block(self, link: Link, call: Any) -> bytes:
        return self._later_block(link, call)  # each has another header: nothing to keep

    @override
    def _headers(self, link: Link, call: Any, remaining_s: float) -> list[Header]:
        headers = super()._headers(link, call, remaining_s)
        return [*headers, (HEADER, _caller.get())]


class TracedSession(Session):
    """A session that keeps, while a handler begins, the span of its request."""

    @override
    def _serve(self, stream_id: int, headers: dict[bytes, bytes], body: memoryview) -> None:
        before = _caller.set(headers.get(HEADER, b""))
        try:
            super()._serve(stream_id, headers, body)
        finally:
            _caller.reset(before)


def traced(op: str, handler: Handler, tracing: Tracing) -> Handler:
    """Return a handler each of whose requests is a span."""

    def handle(request: Request) -> Message | Awaitable[Message]:
        span = tracing.serve(op, peer=request.peer, parent=_caller.get())
        try:
            reply = handler(request)
        except BaseException as error:
            span.end(error)
            raise
        if isinstance(reply, Message):
            span.end()
            return reply
        return _Ending(reply, span)

    return handle


class _Ending:
    """An answer that ends its span."""

    def __init__(self, reply: Awaitable[Message], span: Span) -> None:
        self._reply = reply
        self._span = span

    def __await__(self) -> Any:
        try:
            reply = yield from self._reply.__await__()
        except BaseException as error:
            self._span.end(error)
            raise
        self._span.end()
        return reply

    def close(self) -> None:
        """End work that nobody will wait for."""
        abandon(self._reply)
