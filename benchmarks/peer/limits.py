"""What a step's bytes take through bare sockets, TCP and Unix, and its rows in the kernels.

Not a system: no part makes the step. The server answers whatever comes with as many
bytes as it is asked for, through uvloop, without looking at them; the table's half calls a
shard in the client's process, without any message.
"""

import asyncio
import socket
import struct
import sys
import time
from itertools import pairwise
from typing import Any, cast

import numpy as np
import uvloop
from numpy.typing import NDArray

from paramfleet_shared.net.rpc.connection.unix_socket import bind_nearby, connect_nearby, widen
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec
from peer.work import LR, NUM_BATCHES, Burst, Work

__all__ = ["LimitsDriver", "driver", "serve"]

_HOST = "127.0.0.1"

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
        sock = transport.get_extra_info("socket")
        if sock.family == socket.AF_UNIX:
            widen(sock)

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
    nearby = bind_nearby((_HOST, port))
    tcp = await loop.create_server(_End, _HOST, port)
    async with tcp, await loop.create_unix_server(_End, sock=nearby):
        await asyncio.to_thread(sys.stdin.read)


def serve(work: Work, port: int) -> None:
    """Answer on loopback until standard input ends."""
    del work
    uvloop.run(_serve(port))


class LimitsDriver:
    """The client's end: bursts whose steps are bare transports and bare table in turns.

    So all parts meet the same machine, and the same caches as in a whole step. The
    connections stay: their first steps are slow.

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
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._ends: dict[str, _End] = {}

    def fill(self) -> None:
        """Make the table's rows; zeros are content enough for their speed."""
        for ids in self._work.chunks():
            rows = np.empty((len(ids), self._work.dim), np.float32)
            self._shard.pull(ids, rows, create=True)

    def parts(self, steps: int) -> dict[str, Any]:
        """Move the bytes of steps, and pull and push their rows in this thread.

        Returns the fields of a ``Burst`` of each part.
        """
        parts = self._runner.run(self._parts(steps))
        return {name: burst._asdict() for name, burst in parts.items()}

    def close(self) -> None:
        """Close the connections."""
        for end in self._ends.values():
            if end.transport is not None:
                end.transport.close()
        self._runner.close()

    async def _parts(self, steps: int) -> dict[str, Burst]:
        ends, now = await self._connected(), time.perf_counter
        parts = {name: Burst(0.0, [], []) for name in (*ends, "table")}
        for step in range(steps):
            ids, grads = self._batches[step % NUM_BATCHES]
            ids_view, grads_view = ids.data.cast("B"), grads.data.cast("B")
            times = [now()]
            for end in ends.values():
                await end.call([ids_view], ids.nbytes, grads.nbytes)
                times.append(now())
            self._shard.pull(ids, self._rows, create=True)
            times.append(now())
            both = ids.nbytes + grads.nbytes
            for end in ends.values():
                await end.call([ids_view, grads_view], both, _SMALL_ANSWER_BYTES)
                times.append(now())
            self._push(ids, grads)
            times.append(now())
            pieces = [1e3 * (after - before) for before, after in pairwise(times)]
            for place, burst in enumerate(parts.values()):
                burst.pull_ms.append(pieces[place])
                burst.step_ms.append(pieces[place] + pieces[len(parts) + place])
        return {
            name: burst._replace(wall_s=sum(burst.step_ms) / 1e3)
            for name, burst in parts.items()
        }

    async def _connected(self) -> dict[str, _End]:
        if not self._ends:
            loop = asyncio.get_running_loop()
            nearby = connect_nearby(_HOST, self._port)
            _, self._ends["transport"] = await loop.create_connection(_End, _HOST, self._port)
            _, self._ends["unix"] = await loop.create_unix_connection(_End, sock=nearby)
        return self._ends

    def _push(self, ids: NDArray[np.int64], grads: NDArray[np.float32]) -> None:
        self._num_pushes += 1
        self._shard.push(ids, grads, lr=LR, step=self._num_pushes, unique=True)


def driver(work: Work, port: int) -> LimitsDriver:
    """Return the commands of the client's end."""
    return LimitsDriver(work, port)
