"""grpcio's sync face: threads on both sides, bytes in, bytes out."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc  # type: ignore[import-untyped]  # grpcio ships no types

from wires.cases import CALL_TIMEOUT_S, CASES, OPTIONS, SERVICE, Ask, Payloads, Tls, check

__all__ = ["connect", "serve"]

_SERVER_THREADS = 4
_CLIENT_THREADS = 32


async def serve(payloads: Payloads, tls: Tls | None) -> int:
    """Serve until the process ends; return the port."""
    assert tls is None, "measured without"

    def handler(case: str) -> Any:
        answer = payloads.answers[case].tobytes()

        def handle(_request: bytes, _context: object) -> bytes:
            return answer

        return grpc.unary_unary_rpc_method_handler(handle)

    server = grpc.server(ThreadPoolExecutor(_SERVER_THREADS), options=OPTIONS)
    handlers = {case: handler(case) for case in CASES}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port: int = server.add_insecure_port("127.0.0.1:0")
    server.start()
    _running.append(server)
    return port


async def connect(payloads: Payloads, port: int, tls: Tls | None) -> Ask:
    """Return how to ask the server: futures of grpcio, which wake the loop."""
    assert tls is None, "measured without"
    loop = asyncio.get_running_loop()
    channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS)
    calls = {case: channel.unary_unary(f"/{SERVICE}/{case}") for case in CASES}
    requests = {case: payload.tobytes() for case, payload in payloads.requests.items()}
    pool = ThreadPoolExecutor(_CLIENT_THREADS)

    def call(case: str) -> None:
        check(calls[case](requests[case], timeout=CALL_TIMEOUT_S), case)

    async def ask(case: str) -> None:
        await loop.run_in_executor(pool, call, case)

    return ask


_running: list[Any] = []
"""Servers, which end when they are collected."""
