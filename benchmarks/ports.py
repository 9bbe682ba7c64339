"""Ports for servers that are told where to listen."""

import contextlib
import random
import socket

__all__ = ["free_port"]


def free_port() -> int:
    """Return a port of loopback that nobody has, below those of the system's outgoing calls.

    One of those could be taken by a call before the server listens.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
