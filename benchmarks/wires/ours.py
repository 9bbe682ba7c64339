"""paramfleet's own: ``Channel.call`` to a handler of ``RpcServer``."""

import ssl
from collections.abc import Mapping
from typing import Any

from paramfleet_shared.net.rpc.client import Channel
from paramfleet_shared.net.rpc.server import Handler, Request, RpcServer
from paramfleet_shared.net.secret import JobSecret
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.system.clock import SystemClock
from wires.cases import CALL_TIMEOUT_S, CASES, Ask, Payloads, Tls, check

__all__ = ["connect", "dial", "serve"]

_ROLE = "worker"


class _End:
    """Speaks TLS to whoever has a certificate of the measurement."""

    def __init__(self, context: ssl.SSLContext) -> None:
        context.set_alpn_protocols(["h2"])
        self._context = context

    def context(self) -> ssl.SSLContext:
        return self._context

    def role_of(self, _certificate: Mapping[str, Any] | None) -> str:
        return _ROLE

    def refusal(self, _certificate: Mapping[str, Any] | None) -> str:
        return ""


async def serve(payloads: Payloads, tls: Tls | None, secret: str = "") -> int:
    """Serve until the process ends; return the port.

    Args:
        payloads: What is answered.
        tls: Whom to serve; None serves everybody.
        secret: What callers prove to know; empty asks for nothing.
    """

    def handler(case: str) -> Handler:
        answer = payloads.answers[case]

        def handle(_request: Request) -> Message:
            return Message(tensors={"bytes": answer})

        return handle

    server = RpcServer(
        {case: handler(case) for case in CASES},
        name="server",
        clock=SystemClock(),
        tls=None if tls is None else _End(tls.server()),
        rights=dict.fromkeys(CASES, frozenset({_ROLE})),
        secret=_secret(secret),
    )
    return await server.start("127.0.0.1", 0)


async def connect(payloads: Payloads, port: int, tls: Tls | None, secret: str = "") -> Ask:
    """Return how to ask the server."""
    return _ask(_channel(port, tls, secret), payloads)


async def dial(payloads: Payloads, port: int, secret: str = "") -> None:
    """Open a connection, make one small call, and close it."""
    channel = _channel(port, None, secret)
    await _ask(channel, payloads)("small")
    await channel.close()


def _channel(port: int, tls: Tls | None, secret: str) -> Channel:
    return Channel(
        f"127.0.0.1:{port}",
        peer="server",
        clock=SystemClock(),
        tls=None if tls is None else _End(tls.client()),
        secret=_secret(secret),
    )


def _secret(text: str) -> JobSecret | None:
    return JobSecret(text, "transport") if text else None


def _ask(channel: Channel, payloads: Payloads) -> Ask:
    async def ask(case: str) -> None:
        message = Message(tensors={"bytes": payloads.requests[case]})
        answer = await channel.call(case, message, timeout_s=CALL_TIMEOUT_S)
        check(answer.tensors["bytes"], case)

    return ask
