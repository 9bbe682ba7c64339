"""The shorter way between processes of one machine: a Unix socket beside a TCP port.

Through loopback TCP a byte costs both ends about twice the processor time. So a server may
listen on a Unix socket as well, whose name is its address and port, and who calls them looks
for that name first.

Names are of Linux' abstract kind (unix(7)): one exists as long as its socket, and is seen in
its network namespace alone, as a port is. A server of all addresses has none, because another
machine's server may have the same port. Anybody may take any name, so both ends go on only
with a process of their own user; a client that finds none uses TCP.
"""

import contextlib
import ipaddress
import os
import socket
import struct
import sys
from functools import lru_cache

from paramfleet_shared.net.rpc.endpoint import join_endpoint

__all__ = [
    "bind_nearby",
    "connect_nearby",
    "is_of_our_user",
    "process_of",
    "widen",
]

_IS_POSSIBLE = sys.platform == "linux"
_KIND = socket.SOCK_STREAM | getattr(socket, "SOCK_NONBLOCK", 0)

_SEND_BUFFER_BYTES = 1 << 20
"""What the kernel is asked to hold of bytes on their way. With what it holds unasked, the two
ends wait for each other many times in a large message."""

_CREDENTIALS = struct.Struct("3i")
"""Process, user, group: ``struct ucred``."""


def bind_nearby(bound: tuple[object, ...]) -> socket.socket | None:
    """Return a socket to listen on beside a TCP one; None where that can't be had.

    Args:
        bound: The name of the TCP socket: address, port, ...
    """
    name = _name(str(bound[0]), int(str(bound[1])))
    if name is None:
        return None
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.socket(socket.AF_UNIX, _KIND))
        sock.bind(name)  # unless somebody has the name
        stack.pop_all()
        return sock
    return None


def connect_nearby(host: str, port: int) -> socket.socket | None:
    """Return a connection to a server of this machine and this user; None if there is none.

    Args:
        host: The address of the server's TCP socket; a host name finds none.
        port: And its port.
    """
    name = _name(host, port)
    if name is None:
        return None
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.socket(socket.AF_UNIX, _KIND))
        sock.connect(name)  # it never waits: there is no listener, or its queue is full
        if is_of_our_user(sock):
            widen(sock)
            stack.pop_all()
            return sock
    return None


def widen(sock: socket.socket) -> None:
    """Let more bytes be on their way through a Unix socket."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)


def process_of(sock: socket.socket) -> str:
    """Return which process is at the other end of a Unix socket."""
    return f"process {_credentials(sock)[0]}"


def is_of_our_user(sock: socket.socket) -> bool:
    """Return whether a process of this one's user is at the other end of a Unix socket."""
    return _credentials(sock)[1] == os.geteuid()


@lru_cache(maxsize=64)
def _name(host: str, port: int) -> str | None:
    """Return the name beside a port; None if there is none."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if address.is_unspecified or not _IS_POSSIBLE:
        return None
    return f"\0paramfleet/{join_endpoint(str(address), port)}"


def _credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Return process, user and group at the other end."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, group = _CREDENTIALS.unpack(raw)
    return process, user, group
