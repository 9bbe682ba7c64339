"""A wire that a test can cut, between a client and a server."""

import asyncio
import contextlib
from typing import Self

__all__ = ["Proxy"]

_CHUNK_BYTES = 64 << 10


class Proxy:
    """Forwards TCP connections to a port, until told otherwise.

    Use it as an async context manager.

    Args:
        port: Where to forward to, on 127.0.0.1.
    """

    def __init__(self, port: int) -> None:
        self.num_connections = 0
        """Connections accepted so far."""
        self.num_forwarded = 0
        """Bytes carried so far, both ways."""
        self._port = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._cut_at: int | None = None

    @property
    def endpoint(self) -> str:
        """Return ``host:port`` of this side of the wire."""
        assert self._server is not None, "enter the proxy first"
        port: int = self._server.sockets[0].getsockname()[1]
        return f"127.0.0.1:{port}"

    def freeze(self) -> None:
        """Swallow nothing and forward nothing: a black hole, or a stopped peer."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Let the bytes flow again."""
        self._flowing.set()

    def cut(self) -> None:
        """Break every connection."""
        for writer in self._writers:
            writer.transport.abort()

    def cut_after(self, num_bytes: int) -> None:
        """Break every connection once, when ``num_bytes`` more have been carried."""
        self._cut_at = self.num_forwarded + num_bytes

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.thaw()
        self.cut()
        await self._server.wait_closed()

    async def _accept(
        self, near_in: asyncio.StreamReader, near_out: asyncio.StreamWriter
    ) -> None:
        self.num_connections += 1
        with contextlib.suppress(OSError):
            far_in, far_out = await asyncio.open_connection("127.0.0.1", self._port)
            self._writers |= {near_out, far_out}
            async with asyncio.TaskGroup() as group:
                group.create_task(self._carry(near_in, far_out))
                group.create_task(self._carry(far_in, near_out))
            self._writers -= {near_out, far_out}
        near_out.close()

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(_CHUNK_BYTES):
                await self._flowing.wait()
                self.num_forwarded += len(data)
                if self._cut_at is not None and self.num_forwarded >= self._cut_at:
                    self._cut_at = None
                    self.cut()
                sink.write(data)
                await sink.drain()
        sink.close()
