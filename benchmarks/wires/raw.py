"""The limit: a length before each message, on bare TCP, received where it is to stay."""

import asyncio
import struct
from collections import deque
from typing import cast

import numpy as np
from typing_extensions import override

from wires.cases import CASES, Ask, Payloads, Tls, check

__all__ = ["connect", "dial", "serve"]

_HEADER = struct.Struct(">LL")
"""Bytes that follow, and the case's number."""

_HIGH_WATER_BYTES = 1 << 20
_JOIN_BYTES = 4096
_NAMES = list(CASES)


class _Protocol(asyncio.BufferedProtocol):
    """Whole messages in, and out."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._scratch = memoryview(bytearray(1 << 16))
        self._end = 0
        self._body = memoryview(b"")
        self._missing = 0
        self._case = 0

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        if self._missing:
            return self._body[len(self._body) - self._missing :]
        return self._scratch[self._end :]

    @override
    def buffer_updated(self, nbytes: int) -> None:
        if self._missing:
            self._missing -= nbytes
            if not self._missing:
                self.on_message(self._case, self._body)
            return
        self._end += nbytes
        start = 0
        while self._end - start >= _HEADER.size:
            size, case = _HEADER.unpack_from(self._scratch, start)
            start += _HEADER.size
            come = min(size, self._end - start)
            body = np.empty(size, np.uint8).data
            body[:come] = self._scratch[start : start + come]
            start += come
            if come < size:
                self._case, self._body, self._missing = case, body, size - come
                self._end = 0
                return
            self.on_message(case, body)
        left = bytes(self._scratch[start : self._end])
        self._scratch[: len(left)] = left
        self._end = len(left)

    def send(self, case: int, body: memoryview) -> None:
        """Write one message."""
        assert self._transport is not None, "connected"
        header = _HEADER.pack(len(body), case)
        if len(body) <= _JOIN_BYTES:
            self._transport.write(header + body)
        else:
            self._transport.writelines([header, body])

    def on_message(self, case: int, body: memoryview) -> None:
        """Take one message."""
        raise NotImplementedError


class _Server(_Protocol):
    def __init__(self, payloads: Payloads) -> None:
        super().__init__()
        self._answers = [payloads.answers[name].data for name in _NAMES]

    @override
    def on_message(self, case: int, body: memoryview) -> None:
        self.send(case, self._answers[case])


class _Client(_Protocol):
    def __init__(self, payloads: Payloads) -> None:
        super().__init__()
        self._requests = payloads.requests
        self._waiting: deque[asyncio.Future[memoryview]] = deque()

    @override
    def on_message(self, case: int, body: memoryview) -> None:
        self._waiting.popleft().set_result(body)

    async def ask(self, case: str) -> None:
        """Make a call; answers come in the order of requests."""
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self.send(_NAMES.index(case), self._requests[case].data)
        check(await answer, case)


async def serve(payloads: Payloads, tls: Tls | None) -> int:
    """Serve until the process ends; return the port."""
    listener = await asyncio.get_running_loop().create_server(
        lambda: _Server(payloads), "127.0.0.1", 0, ssl=None if tls is None else tls.server()
    )
    port: int = listener.sockets[0].getsockname()[1]
    return port


async def connect(payloads: Payloads, port: int, tls: Tls | None) -> Ask:
    """Return how to ask the server."""
    _, client = await asyncio.get_running_loop().create_connection(
        lambda: _Client(payloads),
        "127.0.0.1",
        port,
        ssl=None if tls is None else tls.client(),
    )
    return client.ask


async def dial(payloads: Payloads, port: int) -> None:
    """Open a connection, make one small call, and close it."""
    transport, client = await asyncio.get_running_loop().create_connection(
        lambda: _Client(payloads), "127.0.0.1", port
    )
    await client.ask("small")
    transport.close()
