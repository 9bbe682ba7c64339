"""Listening sockets whose connections are counted before anything of them is read.

asyncio's own server doesn't keep which peer failed a TLS handshake. Here each connection is
admitted or closed at once, and each handshake is awaited by a task that knows the peer.

Without TLS uvloop accepts in C, which takes a fifth off the start of a connection; so that is
left to it. Without a free descriptor it closes who waits and says nothing: ``look`` does.
"""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import cast

from typing_extensions import override

from paramfleet_shared.net.rpc.connection.limits import (
    Admission,
    ConnectionTable,
    Peer,
    Repeats,
    peer_of,
)
from paramfleet_shared.net.rpc.connection.unix_socket import is_of_our_user, process_of, widen
from paramfleet_shared.net.rpc.endpoint import join_endpoint
from paramfleet_shared.net.rpc.tasks import TaskSet
from paramfleet_shared.net.tls import TlsEnd
from paramfleet_shared.system.clock import Clock

__all__ = ["Listener", "why_handshake_failed"]

log = logging.getLogger(__name__)

_BACKLOG = 1024
_BURST = 64
"""Connections accepted before the loop turns to others."""

_HANDSHAKE_TIMEOUT_S = 10.0
_MAX_HANDSHAKES = 512
_MAX_HANDSHAKES_OF_PEER = 256
_PAUSE_S = 0.2
"""Rest after a connection couldn't be accepted, as without a free file descriptor."""

_REPEAT_S = 10.0
"""Seconds between two log lines that say the same."""

_LACKS = {
    errno.EMFILE: "this process has no free file descriptor: raise its limit of open files "
    "(ulimit -n, LimitNOFILE=)",
    errno.ENFILE: "the machine has no free file descriptor: raise fs.file-max",
}


class Listener:
    """Listens, and hands connections that are admitted to a protocol.

    Used from one event loop. ``open`` it once; ``close`` may be called twice. ``look`` is
    called once in a second or so.

    Args:
        protocol: Makes the protocol of one connection, which releases its admission when the
            connection is lost.
        table: Which connections there are, and may be.
        clock: Time.
        server: How the log names what listens here.
        tls: Whose certificate is shown; None serves without TLS.
    """

    def __init__(
        self,
        protocol: Callable[[Admission], asyncio.BaseProtocol],
        table: ConnectionTable,
        *,
        clock: Clock,
        server: str,
        tls: TlsEnd | None = None,
    ) -> None:
        self._protocol = protocol
        self._table = table
        self._clock = clock
        self._server = server
        self._tls = tls
        self._tasks = TaskSet()
        self._repeats = Repeats(_REPEAT_S)
        self._handshakes: list[str] = []
        """The groups of those who shake hands now."""
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.AbstractServer] = []
        """Those of the loop, where it accepts."""
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}

    async def open(self, host: str, port: int) -> int:
        """Listen, and return the port.

        Raises:
            OSError: if the address can't be listened on.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                self._bind(family, (address[0], port or self.port or 0, *address[2:]))
            for each in self._sockets:
                await self._listen(each)
        except OSError:
            self.close()
            raise
        port_now = self.port
        assert port_now is not None, "a host has an address"
        return port_now

    async def add(self, sock: socket.socket) -> None:
        """Listen on one more socket, a Unix one that is bound."""
        self._sockets.append(sock)
        await self._listen(sock)

    def look(self) -> None:
        """Say it if there is no free descriptor."""
        if self._sockets:
            try:
                os.close(os.dup(self._sockets[0].fileno()))
            except OSError as error:
                self._say_lack(error)

    @property
    def names(self) -> list[tuple[object, ...]]:
        """The addresses listened on."""
        return [each.getsockname() for each in self._sockets]

    @property
    def port(self) -> int | None:
        """The port listened on; None before ``open`` and after ``close``."""
        return self._sockets[0].getsockname()[1] if self._sockets else None

    def close(self) -> None:
        """Take no more connections."""
        for pause in self._pauses.values():
            pause.cancel()
        self._pauses.clear()
        for server in self._servers:
            server.close()
        self._servers.clear()
        for each in self._sockets:
            if each.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(each)
            each.close()
        self._sockets.clear()

    async def wait_closed(self) -> None:
        """Close, and end the handshakes that still run."""
        await self._tasks.close()
        self.close()

    def _bind(self, family: int, address: tuple[object, ...]) -> None:
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            if family != socket.AF_INET6:
                raise
            return  # this machine has none
        self._sockets.append(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)

    async def _listen(self, sock: socket.socket) -> None:
        sock.settimeout(0)
        loop = asyncio.get_running_loop()
        if self._tls is not None or isinstance(loop, asyncio.SelectorEventLoop):
            sock.listen(_BACKLOG)
            loop.add_reader(sock, self._accept, sock)
            return
        create = (
            loop.create_unix_server if sock.family == socket.AF_UNIX else loop.create_server
        )
        self._servers.append(
            await create(lambda: _Entry(self._enter), sock=sock, backlog=_BACKLOG)
        )

    def _accept(self, listener: socket.socket) -> None:
        """Take those who wait, some at a time."""
        for _ in range(_BURST):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(listener, error)
                return
            sock.settimeout(0)
            self._take(sock, address)

    def _pause(self, listener: socket.socket, error: OSError) -> None:
        """Say what lacks, and go on in a while: those who wait do so in the kernel."""
        loop = asyncio.get_running_loop()
        self._say_lack(error)
        loop.remove_reader(listener)
        self._pauses[listener] = loop.call_later(_PAUSE_S, self._go_on, listener)

    def _go_on(self, listener: socket.socket) -> None:
        del self._pauses[listener]
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _take(self, sock: socket.socket, address: tuple[object, ...]) -> None:
        admission = self._admit(sock, address)
        if admission is None:
            sock.close()
            return
        group = admission.peer.group
        if self._tls is not None:
            self._handshakes.append(group)

        def begun(task: asyncio.Task[bool]) -> None:  # called even if it was never run
            if self._tls is not None:
                self._handshakes.remove(group)
            if task.cancelled() or not task.result():
                admission.release()
                with contextlib.suppress(OSError):
                    sock.close()

        task = self._tasks.start(self._begin(sock, admission), name=f"accept {self._server}")
        task.add_done_callback(begun)
        admission.cut = task.cancel

    def _enter(self, transport: asyncio.Transport) -> asyncio.BaseProtocol | None:
        """Return the protocol of a connection that the loop accepted; None to close it."""
        sock: socket.socket = transport.get_extra_info("socket")
        admission = self._admit(sock, transport.get_extra_info("peername"))
        return None if admission is None else self._protocol(admission)

    def _admit(
        self, sock: socket.socket, address: tuple[object, ...] | str | None
    ) -> Admission | None:
        """Let a connection in; None, and a line in the log, if not."""
        is_unix = sock.family == socket.AF_UNIX
        try:
            peer = _peer_of(sock, address)
            is_stranger = is_unix and not is_of_our_user(sock)
            if is_unix:
                widen(sock)
        except OSError:  # gone already
            return None
        in_all, of_peer = len(self._handshakes), self._handshakes.count(peer.group)
        admission: Admission | str
        if is_stranger:
            admission = "it is a process of another user"
        elif in_all >= _MAX_HANDSHAKES or of_peer >= _MAX_HANDSHAKES_OF_PEER:
            admission = f"{in_all} TLS handshakes go on, {of_peer} of them with {peer.group}"
        else:
            admission = self._table.admit(peer, descriptor=sock.fileno())
        if isinstance(admission, Admission):
            if admission.evicted is not None:
                reason = "no more are taken, and it is the oldest whose caller isn't known"
                evicted = admission.evicted
                self._say("connections.evicted", reason, what=evicted.group, peer=evicted.name)
            return admission
        self._say("connections.refused", admission, what=peer.group, peer=peer.name)
        return None

    async def _begin(self, sock: socket.socket, admission: Admission) -> bool:
        """Hand a connection to its protocol, after a handshake if there is TLS.

        Returns:
            Whether that was done.
        """
        tls = self._tls
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._protocol(admission),
                sock,
                ssl=None if tls is None else tls.context(),
                ssl_handshake_timeout=None if tls is None else _HANDSHAKE_TIMEOUT_S,
            )
        except OSError as error:
            if tls is not None:
                facts = {"server": self._server, "peer": admission.peer.name}
                log.warning(
                    "tls.refused", extra={**facts, "reason": why_handshake_failed(error)}
                )
            return False
        return True

    def _say_lack(self, error: OSError) -> None:
        reason = _LACKS.get(error.errno or 0, str(error))
        self._say("connections.not_accepted", reason, what=str(error.errno))

    def _say(self, event: str, reason: str, *, what: str, peer: str = "") -> None:
        """Log it, unless that was done just now."""
        times = self._repeats.count(f"{event} {what}", self._clock.monotonic())
        if times:
            facts = {"server": self._server, **({"peer": peer} if peer else {})}
            log.warning(event, extra={**facts, "times": times, "reason": reason})


class _Entry(asyncio.Protocol):
    """What a connection has until it is admitted.

    Args:
        enter: Returns its protocol; None to close it.
    """

    def __init__(
        self, enter: Callable[[asyncio.Transport], asyncio.BaseProtocol | None]
    ) -> None:
        self._enter = enter

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        entering = cast("asyncio.Transport", transport)
        protocol = self._enter(entering)
        if protocol is None:
            entering.abort()
            return
        entering.set_protocol(protocol)
        protocol.connection_made(entering)


def _peer_of(sock: socket.socket, address: tuple[object, ...] | str | None) -> Peer:
    """Return who has connected.

    Raises:
        OSError: if that is no longer known.
    """
    if sock.family == socket.AF_UNIX:
        name = process_of(sock)
        return Peer(name, name, is_local=True)
    if not isinstance(address, tuple):
        raise OSError(errno.ENOTCONN, "the peer has no address")
    host = str(address[0])
    return peer_of(host, join_endpoint(host, int(str(address[1]))))


def why_handshake_failed(error: OSError) -> str:
    """Return the reason of a failed handshake, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate isn't accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS: {error.reason or error}".replace("_", " ").lower()
    return str(error) or "the handshake was broken off"
