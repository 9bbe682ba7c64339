"""Connections of HTTP/1.1 that are cut when their peer is slow; the library has no such times.

A request's head must come whole in some time, from the connection's beginning or from its
first byte, and answers must be read. Between two requests a connection may be silent.
"""

import asyncio
from dataclasses import dataclass
from typing import cast

from typing_extensions import override

from paramfleet_shared.net.rpc.connection.limits import Admission
from paramfleet_shared.system.clock import Clock

__all__ = ["AdminLimits", "Guarded", "RequestPace"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AdminLimits:
    """What callers of an admin address may not pass."""

    max_connections: int = 256
    """Most connections in all; for a further one the oldest of an unknown caller is closed, or
    it is closed itself if all callers are known."""
    max_connections_per_peer: int = 128
    """Most connections from one address, or from all loopback addresses together; as above."""
    head_timeout_s: float = 5.0
    """Longest time in which a request's head comes."""
    body_timeout_s: float = 5.0
    """Longest time in which its body comes."""
    max_body_bytes: int = 64 << 10
    """Longest body; a longer one is answered 413."""
    unread_timeout_s: float = 30.0
    """Longest time in which bytes wait for a peer that doesn't read all."""
    keep_alive_s: float = 60.0
    """Longest silence between two requests of one connection."""


class RequestPace:
    """The progress of a connection, from the events reported to it.

    Args:
        limits: The times.
        now: When it began.
    """

    def __init__(self, limits: AdminLimits, now: float) -> None:
        self._limits = limits
        self._head_since: float | None = now
        """Since when a head has been awaited; None while none is."""
        self._is_serving = False
        self._has_more = False
        """Whether something came while a request was served."""
        self._unread_since: float | None = None

    def received(self, now: float) -> None:
        """Take note of bytes that came."""
        if self._is_serving:
            self._has_more = True
        elif self._head_since is None:
            self._head_since = now

    def began(self) -> None:
        """Take note that a head was whole, and that its request is served."""
        self._is_serving, self._has_more = True, False
        self._head_since = None

    def ended(self, now: float) -> None:
        """Take note that it was served."""
        self._is_serving = False
        if self._has_more:
            self._head_since = now

    def why_late(self, now: float, num_unread: int) -> str | None:
        """Return why to cut it, or None.

        Args:
            now: The time.
            num_unread: Bytes written that the system hasn't taken.
        """
        if not num_unread:
            self._unread_since = None
        elif self._unread_since is None:
            self._unread_since = now
        head_since, unread_since = self._head_since, self._unread_since
        if head_since is not None and now - head_since > self._limits.head_timeout_s:
            return "the head of its request took too long"
        if unread_since is not None and now - unread_since > self._limits.unread_timeout_s:
            return "it doesn't read its answers"
        return None


class Guarded(asyncio.Protocol):
    """Hands on what comes, and knows the pace.

    Args:
        inner: Who serves the connection.
        admission: What is released at its end.
        limits: The times.
        clock: Time.
        guarded: Where it is while it is open.
    """

    def __init__(
        self,
        inner: asyncio.BaseProtocol,
        admission: Admission,
        *,
        limits: AdminLimits,
        clock: Clock,
        guarded: "set[Guarded]",
    ) -> None:
        self._inner = cast("asyncio.Protocol", inner)
        self._admission = admission
        self._clock = clock
        self._pace = RequestPace(limits, clock.monotonic())
        self._guarded = guarded
        self._transport: asyncio.Transport | None = None

    @property
    def peer(self) -> str:
        """Return who is at the other end."""
        return self._admission.peer.name

    def began(self) -> None:
        """Take note that a request is served."""
        self._pace.began()

    def prove(self) -> None:
        """Take note that the caller is known: the connection isn't closed for others."""
        self._admission.prove()

    def ended(self) -> None:
        """Take note that it was."""
        self._pace.ended(self._clock.monotonic())

    def cut_if_late(self, now: float) -> str | None:
        """Cut the connection if it is slow; return why."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return None
        reason = self._pace.why_late(now, transport.get_write_buffer_size())
        if reason is not None:
            transport.abort()
        return reason

    # asyncio.Protocol

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._admission.cut = self._transport.abort
        self._guarded.add(self)
        self._inner.connection_made(transport)

    @override
    def data_received(self, data: bytes) -> None:
        self._pace.received(self._clock.monotonic())
        self._inner.data_received(data)

    @override
    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    @override
    def pause_writing(self) -> None:
        self._inner.pause_writing()

    @override
    def resume_writing(self) -> None:
        self._inner.resume_writing()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._guarded.discard(self)
        self._admission.release()
        self._inner.connection_lost(exc)
