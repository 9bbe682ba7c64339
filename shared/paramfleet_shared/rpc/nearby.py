"""The shorter way between processes of one machine: a Unix socket beside a TCP port.

Through loopback TCP a byte costs both ends about twice the processor time. So a server may
listen on a Unix socket as well, whose name is its address, and who calls an address of this
machine looks for that name first.

Names are of Linux' abstract kind (unix(7)): one lives as long as its socket, and is seen in
its network namespace alone, as a port is. Anybody on the machine may take any name, so a
caller goes on only with a process of its own user; whatever is amiss, it comes through TCP.
"""

import asyncio
import contextlib
import os
import socket
import struct
import sys

from paramfleet_shared.rpc.endpoint import join_endpoint

__all__ = ["caller_of", "connect_nearby", "listen_nearby", "widen"]

_IS_POSSIBLE = sys.platform == "linux"
_BACKLOG = 1024
_WILDCARDS = {"0.0.0.0", "::"}  # noqa: S104 - recognised, not bound to

_SEND_BUFFER_BYTES = 1 << 20
"""What the kernel is asked to hold of bytes on their way. With what it holds unasked, the two
ends wait for each other many times in a large message."""

_CREDENTIALS = struct.Struct("3i")
"""Process, user, group: ``struct ucred``."""


def listen_nearby(bound: tuple[object, ...]) -> socket.socket | None:
    """Return a socket that listens beside a TCP one; None where that can't be had.

    Args:
        bound: The name of the TCP socket: address, port, ...
    """
    if not _IS_POSSIBLE:
        return None
    address, port = str(bound[0]), int(str(bound[1]))
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.bind(_name("*" if address in _WILDCARDS else address, port))
        sock.listen(_BACKLOG)
    except OSError:  # somebody has the name
        sock.close()
        return None
    return sock


async def connect_nearby(host: str, port: int) -> socket.socket | None:
    """Return a connection to a server of this machine and this user; None if there is none.

    Args:
        host: Of the server's TCP socket, a name or an address.
        port: And its port.

    Raises:
        OSError: if there is no such host.
    """
    if not _IS_POSSIBLE:
        return None
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, _, _, _, where in found:
        address = str(where[0])
        if _is_of_this_machine(family, address):
            for name in (_name(address, port), _name("*", port)):
                sock = _connect(name)
                if sock is not None:
                    return sock
    return None


def widen(sock: socket.socket | None) -> None:
    """Let more bytes be on their way, if it is a Unix socket."""
    if sock is not None and sock.family == socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)


def caller_of(transport: asyncio.BaseTransport) -> str:
    """Return who is at the other end: ``host:port``, or a process of this machine."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family == socket.AF_UNIX:
        return f"process {_credentials(sock)[0]}"
    name = transport.get_extra_info("peername")
    return join_endpoint(*name[:2]) if name else "?"


def _name(address: str, port: int) -> str:
    return f"\0paramfleet/{address}:{port}"


def _is_of_this_machine(family: int, address: str) -> bool:
    """Return whether one can listen there: another machine's server may have our own's port."""
    with socket.socket(family, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
        probe.bind((address, 0))
        return True
    return False


def _connect(name: str) -> socket.socket | None:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    with contextlib.suppress(OSError):  # nobody is there, or too many wait to be let in
        sock.connect(name)  # it never waits
        if _credentials(sock)[1] == os.getuid():
            return sock
    sock.close()
    return None


def _credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Return process, user and group at the other end."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, group = _CREDENTIALS.unpack(raw)
    return process, user, group
