"""A connection without an event loop: the thread that waits for an answer reads it itself.

Handing a call to another thread and waking up again takes longer than a small call does. So a
thread that has nothing else to do than wait writes its request to a connection of its own, and
sleeps until the socket can be read. ``Link.detach`` gives it one that is proven and
greeted already. Whatever is out of the ordinary ends the connection, and its caller asks again
by the ``Channel``, which knows of retries.

Used by one thread at a time, one call at a time.
"""

import contextlib
import select
import socket
from collections.abc import Hashable, Sequence

from paramfleet_shared.net.http2.client import ClientConnection
from paramfleet_shared.net.http2.events import Event, ResponseReceived, ResponseTooLarge
from paramfleet_shared.net.http2.headers.hpack_memo import Header
from paramfleet_shared.net.rpc.deadlines import DEADLINE_HEADER, write_deadline
from paramfleet_shared.net.wire.limits import BodyTooLargeError, Limits
from paramfleet_shared.net.wire.message import Buffer
from paramfleet_shared.system.clock import Clock

__all__ = ["DirectLink", "DirectLostError", "Waker", "WokenError", "request_headers"]

_MEMO_ENTRIES = 512
_MAX_BUFFERS = 64
"""Buffers that are written at once, fewer than any system takes."""

_READABLE = select.POLLIN
_BOTH = select.POLLIN | select.POLLOUT


class DirectLostError(Exception):
    """The connection is of no more use; what it was asked last may have had its effect."""


class WokenError(Exception):
    """Somebody has called ``Waker.wake``: the wait is to end."""


class Waker:
    """Ends the waits of one thread, now and later. Any thread may call ``wake``."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()

    def fileno(self) -> int:
        """Return what becomes readable."""
        return self._reader.fileno()

    def wake(self) -> None:
        """End the wait; does nothing once it is closed."""
        with contextlib.suppress(OSError):
            self._writer.send(b"!")

    def close(self) -> None:
        """Close it; no call waits any more."""
        self._reader.close()
        self._writer.close()


class DirectLink:
    """One HTTP/2 connection to a server.

    Args:
        sock: Its socket, which is this object's from now on.
        connection: What is known of it, with no call under way.
        authority: How requests name the server.
        limits: What the server may not pass.
        clock: Time.
        waker: Ends waits.
    """

    def __init__(
        self,
        sock: socket.socket,
        connection: ClientConnection,
        *,
        authority: bytes,
        limits: Limits,
        clock: Clock,
        waker: Waker,
    ) -> None:
        sock.settimeout(0)
        self._sock = sock
        self._connection = connection
        self._authority = authority
        self._limits = limits
        self._clock = clock
        self._waker = waker
        self._blocks: dict[Hashable, bytes] = {}
        self._unsent: list[memoryview] = []
        self._stream_id = 0
        self._answer: ResponseReceived | None = None
        self._poll = select.poll()
        self._poll.register(sock, _READABLE)
        self._poll.register(waker.fileno(), _READABLE)

    @property
    def usable(self) -> bool:
        """Return whether a call may be sent here."""
        connection = self._connection
        return (
            connection.end_reason is None
            and not connection.draining
            and not connection.num_streams
        )

    def send(self, op: str, body: Sequence[Buffer], *, timeout_s: float) -> None:
        """Send a request, as far as the system takes it at once; ``receive`` must follow.

        Raises:
            DirectLostError: if the connection has ended.
        """
        connection, num_bytes = self._connection, sum(map(len, body))
        key = (op, num_bytes, timeout_s)
        block = self._blocks.get(key)
        if block is None:
            if len(self._blocks) >= _MEMO_ENTRIES:
                self._blocks.clear()
            headers = request_headers(
                op, num_bytes, timeout_s, scheme=b"http", authority=self._authority
            )
            block = self._blocks[key] = connection.encode(headers)
        self._answer = None
        self._stream_id = connection.request_encoded(block, body, self._clock.monotonic())
        self._write()

    def receive(self, *, until: float) -> ResponseReceived:
        """Return the answer to what was sent last.

        Args:
            until: When to give up, in the clock's time.

        Raises:
            TimeoutError: if there is none in time.
            WokenError: if the wait was ended.
            DirectLostError: if the connection has ended.
            BodyTooLargeError: if the answer is over our limit.
        """
        waker = self._waker.fileno()
        while self._answer is None:
            if self._unsent:
                self._poll.modify(self._sock, _BOTH)
            left_s = until - self._clock.monotonic()
            ready = dict(self._poll.poll(max(0.0, left_s * 1000))) if left_s > 0 else {}
            if self._unsent:
                self._poll.modify(self._sock, _READABLE)
            if not ready:
                raise TimeoutError
            if waker in ready:
                raise WokenError
            if self._unsent:
                self._write()
            self._read()
        answer, self._answer = self._answer, None
        return answer

    def close(self) -> None:
        """Close the connection; a call under way is lost."""
        self._connection.lost("closed by this side")
        self._unsent.clear()
        self._sock.close()

    def _write(self) -> None:
        connection, unsent = self._connection, self._unsent
        try:
            while True:
                if not unsent:
                    for buffer in connection.take_buffers(self._clock.monotonic()):
                        unsent.append(memoryview(buffer))
                    if not unsent:
                        return
                count = self._sock.sendmsg(unsent[:_MAX_BUFFERS])
                while count:
                    first = unsent[0]
                    if count < len(first):
                        unsent[0] = first[count:]
                        break
                    count -= len(first)
                    del unsent[0]
        except BlockingIOError:
            return
        except OSError as error:
            raise DirectLostError(str(error)) from error

    def _read(self) -> None:
        connection = self._connection
        try:
            count = self._sock.recv_into(connection.get_buffer())
        except BlockingIOError:
            return
        except OSError as error:
            raise DirectLostError(str(error)) from error
        if not count:
            raise DirectLostError("the connection was closed")
        if connection.is_within_body(count):
            return
        for event in connection.buffer_updated(count, self._clock.monotonic()):
            self._take(event)
        if connection.has_output:
            self._write()

    def _take(self, event: Event) -> None:
        if isinstance(event, ResponseReceived) and event.stream_id == self._stream_id:
            self._answer = event
        elif isinstance(event, ResponseTooLarge):
            limit_bytes = self._limits.max_body_bytes
            raise BodyTooLargeError(limit_bytes=limit_bytes, got_bytes=event.num_bytes)
        elif getattr(event, "stream_id", None) == self._stream_id or (
            self._connection.end_reason is not None
        ):
            raise DirectLostError(getattr(event, "reason", "the connection ended"))


def request_headers(
    op: str, num_bytes: int, remaining_s: float, *, scheme: bytes, authority: bytes
) -> list[Header]:
    """Return the headers of a call.

    Args:
        op: The operation.
        num_bytes: Of its body.
        remaining_s: What the caller still has.
        scheme: Of the connection.
        authority: How the server is named.
    """
    return [
        (b":method", b"POST"),
        (b":scheme", scheme),
        (b":authority", authority),
        (b":path", b"/v1/" + op.encode()),
        (b"content-length", b"%d" % num_bytes),
        (DEADLINE_HEADER, write_deadline(remaining_s)),
    ]
