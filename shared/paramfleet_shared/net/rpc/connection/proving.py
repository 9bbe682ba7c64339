"""The sockets of ``proof``: what a connection is before it is HTTP/2.

A protocol of its own, which hands the transport on once the other end is known. So a stranger
costs a few hundred bytes, nothing of it is decoded, and calls pay nothing for the proof.
"""

import asyncio
import hmac
import logging
import os
from collections.abc import Callable
from typing import Any, cast, final

from typing_extensions import override

from paramfleet_shared.net.http2 import frames
from paramfleet_shared.net.http2.frames import ErrorCode, FrameType
from paramfleet_shared.net.rpc.connection.limits import Peer, Repeats
from paramfleet_shared.net.rpc.connection.link import CallLostError, Link
from paramfleet_shared.net.rpc.connection.proof import (
    MAX_HELLO_BYTES,
    NONCE_BYTES,
    ClientProof,
    ServerProof,
    UnprovenError,
    proof_key,
)
from paramfleet_shared.net.rpc.connection.protocol import Http2Protocol

__all__ = ["ClientProving", "Proving"]

log = logging.getLogger(__name__)

_FEW_UNPROVEN = 16
"""Up to so many have HTTP/2's own memory before they have proven themselves: it is quicker."""

_MAX_UNPROVEN = 256
"""Connections that may be unproven at a time; another one ends the oldest."""

_REFUSAL = frames.frame(FrameType.SETTINGS, 0, 0) + frames.goaway(
    0, ErrorCode.INADEQUATE_SECURITY
)
"""The answer to an HTTP/2 client that doesn't prove the secret."""

_LOG_EVERY_S = 10.0
"""Seconds between two lines about a peer and a reason; those in between are counted."""

_CLOSED = (
    "it ended the connection instead of proving itself: it has another secret or job, or "
    "means another server"
)
"""The client checks first, and goes when this server's proof isn't what it expects."""


class Proving:
    """The connections of one server whose callers aren't known as yet.

    Args:
        key: What callers must know.
        server: How the log names the server.
        timeout_s: Seconds that a caller has to prove itself.
    """

    def __init__(self, key: bytes, *, server: str, timeout_s: float) -> None:
        self.key = proof_key(key)
        self.timeout_s = timeout_s
        self.name: str | None = None
        """This server's name as its callers know it; until then no client is answered."""
        self._log_name = server
        self._waiting: dict[_ServerProving, float] = {}
        """Until when each may prove itself, by the loop's time; the oldest first."""
        self._timer: asyncio.TimerHandle | None = None
        """One for all: who proves itself in time, as nearly all do, costs none."""
        self._repeats = Repeats(_LOG_EVERY_S)

    def begin(
        self, peer: Peer, make: Callable[[], Http2Protocol[Any]], give_up: Callable[[], None]
    ) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection.

        Args:
            peer: Who has connected.
            make: Makes the protocol that goes on with a known caller.
            give_up: Called once if the connection ends before that is made.
        """
        return _ServerProving(self, peer, make, give_up)

    def identify(self, name: str) -> None:
        """Say who this server is, and answer those who wait for that."""
        self.name = name
        for each in list(self._waiting):
            each.go_on()

    def close(self) -> None:
        """End all connections that aren't known."""
        for each in list(self._waiting):
            each.abort()
        if self._timer is not None:
            self._timer.cancel()

    def add(self, connection: "_ServerProving") -> None:
        """Take a new connection in; one too many ends the oldest."""
        if len(self._waiting) >= _MAX_UNPROVEN:
            oldest = next(iter(self._waiting))
            self.note_unproven(oldest.peer, f"{_MAX_UNPROVEN} others came without a proof")
            oldest.abort()
        loop = asyncio.get_running_loop()
        self._waiting[connection] = until = loop.time() + self.timeout_s
        if self._timer is None:
            self._timer = loop.call_at(until, self._expire)

    @property
    def num_waiting(self) -> int:
        """Return how many callers aren't known as yet."""
        return len(self._waiting)

    def is_waiting(self, connection: "_ServerProving") -> bool:
        """Return whether a connection is neither known nor ended by this end."""
        return connection in self._waiting

    def discard(self, connection: "_ServerProving") -> None:
        """Forget a connection that is known now, or has ended."""
        self._waiting.pop(connection, None)

    def _expire(self) -> None:
        """End those whose time is over, and look again when the next one's will be."""
        self._timer = None
        loop = asyncio.get_running_loop()
        for connection, until in list(self._waiting.items()):
            if until > loop.time():
                self._timer = loop.call_at(until, self._expire)
                return
            connection.refuse(f"no proof within {self.timeout_s:g} s")

    def note_unproven(self, peer: Peer, reason: str) -> None:
        """Log which client isn't admitted, and how often.

        Args:
            peer: Who has connected.
            reason: In words of this end's; nothing that the peer has sent.
        """
        now = asyncio.get_running_loop().time()
        times = self._repeats.count(f"{peer.group} {reason}", now)
        if times:
            facts = {"server": self._log_name, "peer": peer.name, "times": times}
            log.warning("connections.unproven", extra={**facts, "reason": reason})


class _Greeting(asyncio.BufferedProtocol):
    """What both ends have: a small buffer, and a transport for HTTP/2 to take over."""

    def __init__(self) -> None:
        self._buffer = bytearray(MAX_HELLO_BYTES)
        self._transport: asyncio.Transport | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes, only alike
        self._transport = cast("asyncio.Transport", transport)

    @override
    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self.receive(bytes(memoryview(self._buffer)[:nbytes]))

    def receive(self, data: bytes) -> None:
        """Take bytes from the other end."""
        raise NotImplementedError


@final
class _ServerProving(_Greeting):
    """A caller that isn't known as yet."""

    def __init__(
        self,
        all_: Proving,
        peer: Peer,
        make: Callable[[], Http2Protocol[Any]],
        give_up: Callable[[], None],
    ) -> None:
        super().__init__()
        self._all = all_
        self._make = make
        self._give_up = give_up
        self._proof = ServerProof(all_.key, nonce=os.urandom(NONCE_BYTES))
        self._next: Http2Protocol[Any] | None = None
        self.peer = peer

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._all.add(self)

    @override
    def receive(self, data: bytes) -> None:
        try:
            self._proof.receive(data)
        except UnprovenError as fault:
            self.refuse(str(fault))
            return
        if self._proof.proven:
            known, self._next = self._next or self._make(), None
            self._all.discard(self)
            assert self._transport is not None, "bytes came"
            known.take_over(self._transport, b"", self._proof.rest)
            known.resume_writing()
        else:
            self.go_on()

    def go_on(self) -> None:
        """Answer the caller's hello, if it is here and this server knows its own name."""
        name = self._all.name
        if self._proof.is_asked and name is not None:
            assert self._transport is not None, "bytes came"
            answer = self._proof.answer(name)
            if self._all.num_waiting <= _FEW_UNPROVEN:
                self._next = self._make()
                answer += self._next.take_greeting()  # saves a write, and the caller a wait
            self._transport.write(answer)

    def abort(self) -> None:
        """Cut the connection."""
        self._all.discard(self)
        if self._transport is not None:
            self._transport.abort()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._all.is_waiting(self) and self._proof.is_answered:
            self._all.note_unproven(self.peer, _CLOSED)
        self._all.discard(self)
        if self._next is not None:
            self._next.close()
        else:
            self._give_up()

    def refuse(self, reason: str) -> None:
        """Answer that this caller isn't admitted, and close."""
        self._all.note_unproven(self.peer, reason)
        self._all.discard(self)
        transport = self._transport
        assert transport is not None, "connected"
        if not transport.is_closing():
            transport.write(_REFUSAL)
            transport.close()


@final
class ClientProving(_Greeting):
    """A call for a server that isn't known as yet.

    Args:
        key: What the server must know; of ``proof_key``.
        server: Its name.
        make: Makes the link that goes on.
    """

    def __init__(self, key: hmac.HMAC, *, server: str, make: Callable[[], Link]) -> None:
        super().__init__()
        self._proof = ClientProof(key, server=server, nonce=os.urandom(NONCE_BYTES))
        self._make = make
        self._next: Link | None = None
        self._link: asyncio.Future[Link] = asyncio.get_running_loop().create_future()

    async def wait_link(self) -> Link:
        """Return the link, once the server has proven itself.

        Raises:
            UnprovenError: if it doesn't.
            CallLostError: if the connection ends before.
        """
        return await self._link

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self._transport is not None, "set just now"
        self._transport.write(self._proof.hello)
        self._next = self._make()  # while the server is at work on its proof

    @override
    def receive(self, data: bytes) -> None:
        transport = self._transport
        assert transport is not None, "bytes came"
        try:
            proof = self._proof.receive(data)
        except UnprovenError as fault:
            self._fail(fault)
            transport.abort()
            return
        if proof:
            assert self._next is not None, "made when the hello was sent"
            link, self._next = self._next, None
            link.take_over(transport, proof, self._proof.rest)
            link.hold()
            if not self._link.done():
                self._link.set_result(link)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        reason = "the connection was closed" if exc is None else f"the connection broke: {exc}"
        self._fail(CallLostError(reason, processed=False))

    def _fail(self, error: Exception) -> None:
        if self._next is not None:
            self._next.close()
            self._next = None
        if not self._link.done():
            self._link.set_exception(error)
            self._link.exception()  # a waiter gets it; there may be none any more
