"""A worker whose wire is cut in the middle of bodies, again and again.

Its calls go through a proxy of this process. Whatever is cut, the worker calls again on a
new connection: for the pserver that is a client that vanishes in the middle of an upload
or a download, and another one that comes.
"""

import asyncio
import threading
from contextlib import AsyncExitStack
from typing import Any

from paramfleet_shared.testing.proxy import Proxy
from peer.growing import GrowingDriver
from peer.ours import OursWorker
from peer.work import Work

__all__ = ["CuttingDriver", "driver"]

_GOLDEN = 0.6180339887498949
"""Multiples of it, less their whole part, spread evenly: cuts meet every part of a step."""


class _Wire:
    """Proxies to pservers, on a loop of their own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()
        self._proxies: list[Proxy] = []
        threading.Thread(target=self._loop.run_forever, name="wire", daemon=True).start()

    def through(self, endpoint: str) -> str:
        """Return the endpoint of a new proxy to another endpoint."""
        proxy = Proxy(int(endpoint.rpartition(":")[2]))
        entered = self._stack.enter_async_context(proxy)
        asyncio.run_coroutine_threadsafe(entered, self._loop).result()
        self._proxies.append(proxy)
        return proxy.endpoint

    def cut_after(self, num_bytes: int) -> None:
        """Break every connection when so many more bytes have been carried."""
        for proxy in self._proxies:
            self._loop.call_soon_threadsafe(proxy.cut_after, num_bytes)

    @property
    def num_connections(self) -> int:
        """Return how many were made so far."""
        return sum(proxy.num_connections for proxy in self._proxies)

    def close(self) -> None:
        """Close the proxies."""
        asyncio.run_coroutine_threadsafe(self._stack.aclose(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)


class CuttingDriver(GrowingDriver):
    """A worker's commands, and one that steps while its wire is cut.

    Args:
        work: Rows of a step.
        worker: Of a job, whose calls go through the wire.
        wire: To be cut.
    """

    def __init__(self, work: Work, worker: OursWorker, wire: _Wire) -> None:
        super().__init__(work, worker)
        self._wire = wire
        self._num_bytes = 2 * work.rows * (8 + 4 * work.dim)
        self._num_cuts = 0

    def cut_burst(self, name: str, steps: int) -> dict[str, Any]:
        """Run steps; the wire is cut once on the way. Returns the connections so far."""
        self._num_cuts += 1
        self._wire.cut_after(int(self._num_bytes * (self._num_cuts * _GOLDEN % 1.0)))
        self.burst(name, steps)
        return {"connections": self._wire.num_connections, "cuts": self._num_cuts}

    def close(self) -> None:
        """Leave the job."""
        super().close()
        self._wire.close()


def driver(work: Work, redis: str, job: str, *, index: int, worker_num: int) -> CuttingDriver:
    """Return the commands of a worker that has joined the job."""
    wire = _Wire()
    worker = OursWorker(redis, job, index=index, worker_num=worker_num, through=wire.through)
    return CuttingDriver(work, worker, wire)
