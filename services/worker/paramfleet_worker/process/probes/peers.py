"""Whose process is at the other end of a connection within this machine."""

import ipaddress
import os
import socket

from paramfleet_worker.process.probes.kernel_sockets import kernel_sockets, unmapped

__all__ = ["is_own"]

_NOBODYS = "0"
"""Inode of a connection that no process has accepted yet; its user isn't known then."""


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
    rows = tuple(kernel_sockets())
    if not any((row.local, row.remote) == (here, there) for row in rows):
        return True  # this kernel doesn't show sockets
    user = os.geteuid()
    accepted = [row for row in rows if (row.local, row.remote) == (there, here)]
    if any(row.user != user and row.inode != _NOBODYS for row in accepted):
        return False
    listeners = [
        row.user
        for row in rows
        if row.is_listening
        and row.local[1] == there[1]
        and (row.local[0] == there[0] or ipaddress.ip_address(row.local[0]).is_unspecified)
    ]
    return bool(listeners) and set(listeners) == {user}


def _place(name: tuple[str, int]) -> tuple[str, int]:
    address = ipaddress.ip_address(name[0].partition("%")[0])
    return unmapped(address), name[1]
