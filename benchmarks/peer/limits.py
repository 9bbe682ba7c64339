"""What a step can't be faster than: its bytes through bare TCP, its rows through the kernels.

Not a system: neither half makes the step. The server answers whatever comes with as many
bytes as it is asked for, through uvloop, without looking at them; the table's half calls a
shard in the client's process, without any message.
"""

import asyncio
import struct
import sys
import time
from typing import Any, cast

import numpy as np
import uvloop
from numpy.typing import NDArray

from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec
from peer.work import LR, NUM_BATCHES, Burst, Work

__all__ = ["LimitsDriver", "driver", "serve"]

_HEAD = struct.Struct("<II")
"""Bytes that follow, and bytes that are wanted in the answer."""

_SMALL_ANSWER_BYTES = 64
"""What acknowledges a push."""

_MAX_BYTES = 1 << 25
"""The longest message; its memory is touched as far as it is used."""


class _End(asyncio.BufferedProtocol):
    """One end of a connection: receives whole messages, each into the same memory."""

    def __init__(self) -> None:
        self._head = bytearray(_HEAD.size)
        self._body = memoryview(bytearray(_MAX_BYTES))
        self._num_head = self._num_body = 0
        self._size = self._wanted = 0
        self._answered: asyncio.Future[int] | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        if self._num_head < _HEAD.size:
            return memoryview(self._head)[self._num_head :]
        return self._body[self._num_body : self._size]

    def buffer_updated(self, nbytes: int) -> None:
        if self._num_head < _HEAD.size:
            self._num_head += nbytes
            if self._num_head < _HEAD.size:
                return
            self._size, self._wanted = _HEAD.unpack(self._head)
        else:
            self._num_body += nbytes
        if self._num_body == self._size:
            self._num_head = self._num_body = 0
            self.received(self._size, self._wanted)

    def received(self, size: int, wanted: int) -> None:
        """Answer, or wake who waits for an answer."""
        if self._answered is not None:
            self._answered.set_result(size)
        elif self.transport is not None:
            self.transport.writelines([_HEAD.pack(wanted, 0), self._body[:wanted]])

    async def call(self, parts: list[Any], num_bytes: int, wanted: int) -> None:
        """Send parts, and wait for an answer of ``wanted`` bytes."""
        assert self.transport is not None, "connected"
        self._answered = asyncio.get_running_loop().create_future()
        self.transport.writelines([_HEAD.pack(num_bytes, wanted), *parts])
        await self._answered


async def _serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_End, "127.0.0.1", port)
    async with server:
        await asyncio.to_thread(sys.stdin.read)


def serve(work: Work, port: int) -> None:
    """Answer on loopback until standard input ends."""
    del work
    uvloop.run(_serve(port))


class LimitsDriver:
    """The client's end: bursts of bare transport, and of bare table.

    Args:
        work: What a step is.
        port: Of the server.
    """

    def __init__(self, work: Work, port: int) -> None:
        self._port = port
        self._batches = [(work.ids(batch), work.grads(batch)) for batch in range(NUM_BATCHES)]
        self._rows = np.empty((work.rows, work.dim), np.float32)
        self._shard = SparseShard(
            TableSpec(
                name="rows",
                kind="sparse",
                dim=work.dim,
                initializer=InitializerSpec(kind="zeros"),
                optimizer=OptimizerSpec(rule="sgd"),
            )
        )
        self._work = work
        self._num_pushes = 0

    def fill(self) -> None:
        """Make the table's rows; zeros are content enough for their speed."""
        for ids in self._work.chunks():
            rows = np.empty((len(ids), self._work.dim), np.float32)
            self._shard.pull(ids, rows, create=True)

    def transport(self, steps: int) -> dict[str, Any]:
        """Move the bytes of steps; returns the fields of a ``Burst``."""
        return uvloop.run(self._transport(steps))._asdict()

    def table(self, steps: int) -> dict[str, Any]:
        """Pull and push steps' rows, in this thread; returns the fields of a ``Burst``."""
        burst = Burst(0.0, [], [])
        begin = time.perf_counter()
        for step in range(steps):
            ids, grads = self._batches[step % NUM_BATCHES]
            start = time.perf_counter()
            self._shard.pull(ids, self._rows, create=True)
            between = time.perf_counter()
            self._num_pushes += 1
            self._push(ids, grads)
            burst.step_ms.append((time.perf_counter() - start) * 1e3)
            burst.pull_ms.append((between - start) * 1e3)
        return burst._replace(wall_s=time.perf_counter() - begin)._asdict()

    def close(self) -> None:
        """Leave nothing: a burst closes its connection."""

    def _push(self, ids: NDArray[np.int64], grads: NDArray[np.float32]) -> None:
        self._shard.push(ids, grads, lr=LR, step=self._num_pushes, unique=True)

    async def _transport(self, steps: int) -> Burst:
        loop = asyncio.get_running_loop()
        _, end = await loop.create_connection(_End, "127.0.0.1", self._port)
        burst = Burst(0.0, [], [])
        begin = time.perf_counter()
        for step in range(steps):
            ids, grads = self._batches[step % NUM_BATCHES]
            ids_view, grads_view = ids.data.cast("B"), grads.data.cast("B")
            start = time.perf_counter()
            await end.call([ids_view], ids.nbytes, grads.nbytes)
            between = time.perf_counter()
            both = ids.nbytes + grads.nbytes
            await end.call([ids_view, grads_view], both, _SMALL_ANSWER_BYTES)
            burst.step_ms.append((time.perf_counter() - start) * 1e3)
            burst.pull_ms.append((between - start) * 1e3)
        wall_s = time.perf_counter() - begin
        if end.transport is not None:
            end.transport.close()
        return burst._replace(wall_s=wall_s)


def driver(work: Work, port: int) -> LimitsDriver:
    """Return the commands of the client's end."""
    return LimitsDriver(work, port)
