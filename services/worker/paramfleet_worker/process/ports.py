"""Ports that are known before their process listens, and that no other process can take."""

import socket
import sys
from types import TracebackType
from typing import Self

from paramfleet_worker.core.topology import Endpoint, Host

__all__ = ["PortReservations"]


class PortReservations:
    """Free ports, held for processes that will listen on them.

    A reservation is a socket that is bound but never listens. On Linux a second socket
    may bind the same port, and listen, when both set ``SO_REUSEADDR``, as every asyncio
    server and redis-server do; but no connection and no request for *any* free port is
    given it. So there is no moment in which the port could be lost. Elsewhere the port
    is released at once, and losing it is possible, if unlikely.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def reserve(self, host: Host) -> Endpoint:
        """Return a free endpoint of ``host``, an address of this machine."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        held = socket.socket(family, socket.SOCK_STREAM)
        self._sockets.append(held)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, 0))
        port = int(held.getsockname()[1])
        if sys.platform != "linux":
            held.close()
        return Endpoint(host, port)

    def close(self) -> None:
        """Give every port back."""
        for held in self._sockets:
            held.close()
        self._sockets.clear()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give every port back."""
        self.close()
