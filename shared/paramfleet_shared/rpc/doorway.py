"""A listening socket whose connections speak TLS.

asyncio's own server forgets who it was that failed a handshake, and says nothing. Here each
handshake is awaited by a task that knows the peer, so that who was refused is logged.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable

from paramfleet_shared.rpc.endpoint import join_endpoint
from paramfleet_shared.rpc.tasks import TaskSet
from paramfleet_shared.tls import TlsEnd

__all__ = ["TlsDoorway", "why_handshake_failed"]

log = logging.getLogger(__name__)

_BACKLOG = 1024
_HANDSHAKE_TIMEOUT_S = 10.0
_MAX_HANDSHAKES = 256
_PAUSE_S = 0.1
"""Rest after a connection couldn't be accepted, as without a free file descriptor."""


class TlsDoorway:
    """Listens, and hands connections to a protocol once their handshake is done.

    Used from one event loop. ``open`` it once; ``close`` may be called twice.

    Args:
        protocol: Makes the protocol of one connection.
        tls: Whose certificate is shown.
        server: How the log names what listens here.
    """

    def __init__(
        self, protocol: Callable[[], asyncio.BaseProtocol], tls: TlsEnd, *, server: str
    ) -> None:
        self._protocol = protocol
        self._tls = tls
        self._server = server
        self._tasks = TaskSet()
        self._free = asyncio.Semaphore(_MAX_HANDSHAKES)
        self._sockets: list[socket.socket] = []

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
                self._listen(family, (address[0], port or self.port or 0, *address[2:]))
        except OSError:
            self.close()
            raise
        for each in self._sockets:
            _ = self._tasks.start(self._accept(each), name=f"accept for {self._server}")
        port_now = self.port
        assert port_now is not None, "a host has an address"
        return port_now

    @property
    def port(self) -> int | None:
        """The port listened on; None before ``open`` and after ``close``."""
        return self._sockets[0].getsockname()[1] if self._sockets else None

    def close(self) -> None:
        """Take no more connections."""
        for each in self._sockets:
            each.close()
        self._sockets.clear()

    async def wait_closed(self) -> None:
        """Close, and end the handshakes that still run."""
        await self._tasks.close()
        self.close()

    def _listen(self, family: int, address: tuple[object, ...]) -> None:
        sock = socket.socket(family, socket.SOCK_STREAM)
        self._sockets.append(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.settimeout(0)
        sock.bind(address)
        sock.listen(_BACKLOG)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._free.acquire()
            try:
                sock, address = await loop.sock_accept(listener)
            except OSError as error:
                self._free.release()
                if error.errno == errno.EBADF:  # closed
                    return
                log.warning("tls.not_accepted", extra={"reason": str(error)})
                await asyncio.sleep(_PAUSE_S)
                continue
            _ = self._tasks.start(self._welcome(sock, address), name=f"greet {self._server}")

    async def _welcome(self, sock: socket.socket, address: tuple[object, ...]) -> None:
        """Shake hands with one caller."""
        peer = join_endpoint(str(address[0]), int(str(address[1])))
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol,
                sock,
                ssl=self._tls.context(),
                ssl_handshake_timeout=_HANDSHAKE_TIMEOUT_S,
            )
        except OSError as error:
            facts = {"server": self._server, "peer": peer}
            log.warning("tls.refused", extra={**facts, "reason": why_handshake_failed(error)})
            with contextlib.suppress(OSError):
                sock.close()
        finally:
            self._free.release()


def why_handshake_failed(error: OSError) -> str:
    """Return the reason of a failed handshake, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate isn't accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS: {error.reason or error}".replace("_", " ").lower()
    return str(error) or "the handshake was broken off"
