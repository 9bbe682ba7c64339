"""Whose process is at the other end of a connection within this machine."""

import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["is_own", "plain_address"]

_LISTENING = "0A"

_NOBODYS = "0"
"""Inode of a connection that no process has accepted yet; its user isn't known then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """A socket, as the kernel writes it."""

    local: tuple[str, int]
    remote: tuple[str, int]
    state: str
    user: int
    inode: str


def is_own(end: socket.socket) -> bool:
    """Return whether a loopback connection is to a process of this user.

    Args:
        end: This process's, connected.

    Returns:
        True where that isn't known: to other machines, and without Linux's ``/proc``.

    Raises:
        OSError: if it isn't connected any more.
    """
    here, there = (_place(each) for each in (end.getsockname(), end.getpeername()))
    if not ipaddress.ip_address(there[0]).is_loopback:
        return True
    rows = tuple(_rows())
    if not any((row.local, row.remote) == (here, there) for row in rows):
        return True  # this kernel doesn't show sockets
    user = os.geteuid()
    accepted = [row for row in rows if (row.local, row.remote) == (there, here)]
    if any(row.user != user and row.inode != _NOBODYS for row in accepted):
        return False
    listeners = [
        row.user
        for row in rows
        if row.state == _LISTENING
        and row.local[1] == there[1]
        and (row.local[0] == there[0] or ipaddress.ip_address(row.local[0]).is_unspecified)
    ]
    return bool(listeners) and set(listeners) == {user}


def plain_address(text: str) -> str:
    """Return an address as people write it; the kernel writes words of 32 bits backwards."""
    raw = bytes.fromhex(text)
    words = [raw[at : at + 4][::-1] for at in range(0, len(raw), 4)]
    return _unmapped(ipaddress.ip_address(b"".join(words)))


def _rows() -> Iterator[_Row]:
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text("ascii").splitlines()[1:]:
                fields = line.split()
                local, remote = (_of_kernel(each) for each in fields[1:3])
                yield _Row(
                    local=local,
                    remote=remote,
                    state=fields[3],
                    user=int(fields[7]),
                    inode=fields[9],
                )


def _of_kernel(text: str) -> tuple[str, int]:
    address, _, port = text.rpartition(":")
    return plain_address(address), int(port, 16)


def _place(name: tuple[str, int]) -> tuple[str, int]:
    address = ipaddress.ip_address(name[0].partition("%")[0])
    return _unmapped(address), name[1]


def _unmapped(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    return str(getattr(address, "ipv4_mapped", None) or address)
