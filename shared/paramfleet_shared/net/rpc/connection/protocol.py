"""The asyncio edge of a connection: bytes between a socket and ``http2``.

Works the same on asyncio and uvloop, with and without TLS.
"""

import asyncio
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar, cast

from typing_extensions import override

from paramfleet_shared.net.http2.connection import Connection
from paramfleet_shared.net.http2.events import Event
from paramfleet_shared.net.http2.limits.pace import BodyPace, Moving
from paramfleet_shared.net.wire.limits import Limits
from paramfleet_shared.net.wire.message import Buffer
from paramfleet_shared.system.clock import Clock

__all__ = ["Http2Protocol"]

_JOIN_BYTES = 4096  # up to this a copy is cheaper than a list of buffers
_FEW_BUFFERS = 4

C = TypeVar("C", bound=Connection)


class Http2Protocol(asyncio.BufferedProtocol, ABC, Generic[C]):
    """Feeds one connection from its transport and writes what it has to say.

    ``closed`` is done when the transport is gone.
    """

    def __init__(self, connection: C, limits: Limits, clock: Clock) -> None:
        self.connection = connection
        self.num_received = 0
        """Bytes received until now: any of them shows that the peer is alive."""
        self.num_written = 0
        """Bytes given to the transport until now."""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._limits = limits
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._writing = BodyPace(limits, clock.monotonic())
        self._cutting: asyncio.TimerHandle | None = None

    @abstractmethod
    def on_event(self, event: Event) -> None:
        """React to an event of the connection; ``flush`` follows."""

    def flush(self) -> None:
        """Write what the connection has, as far as the transport wants it."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        connection = self.connection
        while not self._paused and connection.has_output:
            buffers = connection.take_buffers(self._clock.monotonic())
            if not buffers:
                break
            self.num_written += _write(transport, buffers)
        if connection.end_reason is not None:
            self._close_transport(transport)

    def take_greeting(self) -> bytes:
        """Return what this end says before it knows the peer, for its user to write."""
        greeting = b"".join(self.connection.take_buffers(self._clock.monotonic()))
        self.num_written += len(greeting)
        return greeting

    def take_over(self, transport: asyncio.Transport, first: bytes, received: bytes) -> None:
        """Go on with a transport that another protocol began; ``resume_writing`` must follow.

        Args:
            transport: What to go on with.
            first: To be written before all else.
            received: What came already; answers to it leave in one write with ``first``.
        """
        transport.set_protocol(self)
        self.connection.precede(first)
        self.pause_writing()
        self.connection_made(transport)
        view = memoryview(received)
        while view and not transport.is_closing():
            buffer = self.get_buffer(-1)
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            self.buffer_updated(count)
            view = view[count:]

    def is_unread(self, now: float) -> bool:
        """Return whether the peer reads what was written too slowly, or not at all.

        Asked once in ``pace.look_period_s``.
        """
        transport = self._transport
        num_waiting = 0 if transport is None else transport.get_write_buffer_size()
        num_left = self.num_written - num_waiting
        waiting = [Moving(0, num_left, num_left)] if num_waiting else []
        return bool(self._writing.late(waiting, now))

    def close(self) -> None:
        """Send GOAWAY and close; ``closed`` is done when that is."""
        for event in self.connection.close():
            self.on_event(event)
        self.flush()
        if self._transport is None and not self.closed.done():
            self.closed.set_result(None)

    def abort(self, reason: str) -> None:
        """Close the connection without a notice to the peer."""
        for event in self.connection.lost(reason):
            self.on_event(event)
        if self._transport is not None:
            self._transport.abort()

    # asyncio.BufferedProtocol

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes, only alike
        self._transport = transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(high=self._limits.write_high_water_bytes)
        tls: Any = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self.abort("the peer's TLS did not agree on HTTP/2 (ALPN)")
        self.flush()

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        return self.connection.get_buffer()

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self.num_received += nbytes
        connection = self.connection
        if connection.is_within_body(nbytes):
            return
        for event in connection.buffer_updated(nbytes, self._clock.monotonic()):
            self.on_event(event)
        self.flush()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        reason = "the connection was closed" if exc is None else f"the connection broke: {exc}"
        for event in self.connection.lost(reason):
            self.on_event(event)
        if self._cutting is not None:
            self._cutting.cancel()
        if not self.closed.done():
            self.closed.set_result(None)

    @override
    def pause_writing(self) -> None:
        self._paused = True

    @override
    def resume_writing(self) -> None:
        self._paused = False
        self.flush()

    def _close_transport(self, transport: asyncio.Transport) -> None:
        """Close once the last bytes have gone; a peer that reads none is cut off."""
        buffers = self.connection.take_buffers(self._clock.monotonic())
        if buffers:
            _write(transport, buffers)
        transport.close()
        self._cutting = asyncio.get_running_loop().call_later(
            self._limits.close_timeout_s, transport.abort
        )


def _write(transport: asyncio.Transport, buffers: list[Buffer]) -> int:
    """Write, and return how many bytes those were."""
    num_bytes = sum(map(len, buffers))
    if num_bytes <= _JOIN_BYTES:
        transport.write(b"".join(buffers))
    elif len(buffers) <= _FEW_BUFFERS:
        transport.writelines(buffers)
    else:
        transport.writelines(_joined(buffers))
    return num_bytes


def _joined(buffers: list[Buffer]) -> list[Buffer]:
    """Join small neighbours: answers of many small calls that leave at once."""
    joined: list[Buffer] = []
    small: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) <= _JOIN_BYTES:
            small.append(buffer)
            continue
        if small:
            joined.append(b"".join(small))
            small = []
        joined.append(buffer)
    if small:
        joined.append(b"".join(small))
    return joined
