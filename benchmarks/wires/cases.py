"""What travels, and what every stack must offer to carry it."""

import ssl
from collections.abc import Awaitable, Callable, Sized
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "CALL_TIMEOUT_S",
    "CASES",
    "DIAL",
    "NUM_DIALS",
    "OPTIONS",
    "SERVICE",
    "Ask",
    "Case",
    "Payloads",
    "Tls",
    "Wire",
    "WrongAnswerError",
    "check",
]

CALL_TIMEOUT_S = 60.0

SERVICE = "wires.Service"
"""What grpcio calls the operations' container."""

OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
]
"""Of grpcio: without them it refuses 4 MiB."""

Bytes = NDArray[np.uint8]


class Case(NamedTuple):
    """One kind of call."""

    request_bytes: int
    answer_bytes: int
    calls: int
    """Calls of a burst, for a fast stack about a twentieth of a second."""

    @property
    def moved_bytes(self) -> int:
        """Return what one call moves, both ways."""
        return self.request_bytes + self.answer_bytes


CASES = {
    "small": Case(64, 64, 1_000),
    "medium": Case(64 << 10, 64 << 10, 400),
    "pull": Case(800_000, 6_400_000, 20),
    "push": Case(7_000_000, 64, 20),
}
"""By name, which is also the operation's."""

DIAL = "dial"
"""The case of a new connection with one small call."""

NUM_DIALS = 60
"""Connections of a burst."""

Ask = Callable[[str], Awaitable[None]]
"""Makes one call of a case and checks the length of its answer."""


class Payloads:
    """Made once: no stack makes any while it is measured."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.requests = {
            name: random.integers(0, 256, case.request_bytes, np.uint8)
            for name, case in CASES.items()
        }
        self.answers = {
            name: random.integers(0, 256, case.answer_bytes, np.uint8)
            for name, case in CASES.items()
        }


class Tls(NamedTuple):
    """A certificate for 127.0.0.1, which both sides may show and both trust."""

    certificate: Path
    key: Path
    mutual: bool

    def server(self) -> ssl.SSLContext:
        """Return a server's context; with ``mutual`` it demands a certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        if self.mutual:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.certificate)
        return context

    def client(self) -> ssl.SSLContext:
        """Return a client's context; with ``mutual`` it shows its certificate."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        if self.mutual:
            context.load_cert_chain(self.certificate, self.key)
        return context


class Wire(Protocol):
    """What a stack's module offers."""

    async def serve(self, payloads: Payloads, tls: Tls | None) -> int:
        """Serve until the process ends; return the port."""
        ...

    async def connect(self, payloads: Payloads, port: int, tls: Tls | None) -> Ask:
        """Return how to ask the server."""
        ...


class WrongAnswerError(Exception):
    """An answer of another length than it must have."""

    def __init__(self, case: str, num_bytes: int) -> None:
        super().__init__(f"{num_bytes} bytes answer {case}")


def check(got: Sized, case: str) -> None:
    """Look at an answer's length.

    Raises:
        WrongAnswerError: if it is another than it must be.
    """
    if len(got) != CASES[case].answer_bytes:
        raise WrongAnswerError(case, len(got))
