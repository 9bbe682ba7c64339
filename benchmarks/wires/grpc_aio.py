"""grpcio's asyncio face: bytes in, bytes out. No code is generated, nothing is parsed."""

from typing import Any

import grpc  # type: ignore[import-untyped]  # grpcio ships no types

from wires.cases import CALL_TIMEOUT_S, CASES, OPTIONS, SERVICE, Ask, Payloads, Tls, check

__all__ = ["connect", "serve"]


async def serve(payloads: Payloads, tls: Tls | None) -> int:
    """Serve until the process ends; return the port."""
    assert tls is None, "measured without"

    def handler(case: str) -> Any:
        answer = payloads.answers[case].tobytes()

        async def handle(_request: bytes, _context: object) -> bytes:
            return answer

        return grpc.unary_unary_rpc_method_handler(handle)

    server = grpc.aio.server(options=OPTIONS)
    handlers = {case: handler(case) for case in CASES}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port: int = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    _running.append(server)
    return port


async def connect(payloads: Payloads, port: int, tls: Tls | None) -> Ask:
    """Return how to ask the server."""
    assert tls is None, "measured without"
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS)
    calls = {case: channel.unary_unary(f"/{SERVICE}/{case}") for case in CASES}
    requests = {case: payload.tobytes() for case, payload in payloads.requests.items()}

    async def ask(case: str) -> None:
        check(await calls[case](requests[case], timeout=CALL_TIMEOUT_S), case)

    return ask


_running: list[Any] = []
"""Servers, which end when they are collected."""
