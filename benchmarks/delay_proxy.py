"""A wire that is as long as one likes: every byte arrives a while after it was sent.

    python benchmarks/delay_proxy.py --listen 7100 --to 7000 --delay-ms 10

forwards 127.0.0.1:7100 to 127.0.0.1:7000 and back. Bytes are delayed, not slowed down:
however many there are, each arrives so long after it came, and in the order they came.
Point a client at it, or a pserver's ``advertise`` setting.

It is a model of distance alone: there is no loss, and none of the slow growth of TCP's
window over a long way.
"""

import argparse
import asyncio
import contextlib
import random
from types import TracebackType
from typing import Self

__all__ = ["DelayProxy"]

_PIECE_BYTES = 1 << 18
_MAX_HELD = 1024
"""Pieces that one direction of a connection holds before it stops reading."""

_Held = asyncio.Queue[tuple[float, bytes | None]]
"""When each piece is due on the loop's clock, and the piece: an empty one is the end of the
stream, None the end of the connection."""


class DelayProxy:
    """Forwards TCP connections late. Use it as an async context manager.

    The loop that enters it owns it.

    Args:
        port: Where to forward to, on 127.0.0.1.
        delay_s: One way, in both directions.
        jitter_s: Each piece comes up to this much earlier or later; the order stays.
        listen: Port to listen on; 0 picks a free one.
        seed: Of the jitter.
    """

    def __init__(
        self,
        port: int,
        *,
        delay_s: float,
        jitter_s: float = 0.0,
        listen: int = 0,
        seed: int = 0,
    ) -> None:
        self.num_bytes = 0
        """Bytes carried so far, both ways."""
        self.delay_s = delay_s
        """One way; what is on the way already keeps the delay it started with."""
        self._port = port
        self._jitter_s = jitter_s
        self._listen = listen
        self._random = random.Random(seed)
        self._server: asyncio.Server | None = None
        self._tasks = asyncio.TaskGroup()
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def endpoint(self) -> str:
        """Return ``host:port`` of this side of the wire."""
        assert self._server is not None, "enter the proxy first"
        port: int = self._server.sockets[0].getsockname()[1]
        return f"127.0.0.1:{port}"

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", self._listen, limit=_PIECE_BYTES
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await self._tasks.__aexit__(kind, error, trace)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._tasks.create_task(self._connect(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _connect(
        self, near_in: asyncio.StreamReader, near_out: asyncio.StreamWriter
    ) -> None:
        """Carry one connection's bytes until both directions have ended."""
        try:
            far_in, far_out = await asyncio.open_connection(
                "127.0.0.1", self._port, limit=_PIECE_BYTES
            )
        except OSError:
            near_out.transport.abort()
            return
        try:
            async with asyncio.TaskGroup() as group:
                for source, sink in ((near_in, far_out), (far_in, near_out)):
                    held = _Held(_MAX_HELD)
                    group.create_task(self._read(source, held))
                    group.create_task(self._write(held, sink))
        finally:
            near_out.close()
            far_out.close()

    async def _read(self, source: asyncio.StreamReader, held: _Held) -> None:
        now, due = asyncio.get_running_loop().time, 0.0
        data: bytes | None = b"?"
        while data:
            try:
                data = await source.read(_PIECE_BYTES)
            except OSError:
                data = None
            self.num_bytes += len(data or b"")
            jitter_s = self._jitter_s * self._random.uniform(-1.0, 1.0)
            due = max(due, now() + self.delay_s + jitter_s)
            await held.put((due, data))

    async def _write(self, held: _Held, sink: asyncio.StreamWriter) -> None:
        now = asyncio.get_running_loop().time
        data: bytes | None = b"?"
        while data:
            due, data = await held.get()
            if (wait_s := due - now()) > 0:
                await asyncio.sleep(wait_s)
            with contextlib.suppress(OSError, RuntimeError):  # the other side has gone
                if data:
                    sink.write(data)
                    await sink.drain()
                elif data is None:
                    sink.transport.abort()
                else:
                    sink.write_eof()


async def _forward(options: argparse.Namespace) -> None:
    proxy = DelayProxy(
        options.to,
        delay_s=options.delay_ms / 1e3,
        jitter_s=options.jitter_ms / 1e3,
        listen=options.listen,
    )
    async with proxy:
        print(f"{proxy.endpoint} is {options.delay_ms:g} ms from port {options.to}", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Forward until interrupted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--listen", type=int, default=0, help="0 picks a free port")
    parser.add_argument("--to", type=int, required=True, help="port to forward to")
    parser.add_argument("--delay-ms", type=float, default=10.0, help="one way")
    parser.add_argument("--jitter-ms", type=float, default=0.0)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_forward(parser.parse_args()))


if __name__ == "__main__":
    main()
