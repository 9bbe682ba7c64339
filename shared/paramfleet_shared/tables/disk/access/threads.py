"""Threads that transfer extents, where there is no ring."""

import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from paramfleet_shared.tables.disk.kernels.transfers import Extents, transfer_in_turn

__all__ = ["THREADS", "Shared", "Threads"]

THREADS = 16


class Threads:
    """Threads of all that have them together; they end with the last of these."""

    def __init__(self) -> None:
        self._pool: weakref.ReferenceType[ThreadPoolExecutor] | None = None

    def get(self) -> ThreadPoolExecutor:
        """Return them: they stay as long as somebody has what this returns."""
        pool = None if self._pool is None else self._pool()
        if pool is None:
            pool = ThreadPoolExecutor(THREADS, "paramfleet-tier")
            self._pool = weakref.ref(pool)
        return pool


class Shared:
    """Extents that threads transfer, and whoever waits for them: each takes part after part.

    So nobody waits for a thread that the system refuses to start, and one that comes late finds
    nothing left: it touches no memory that may be used for something else by then.

    Args:
        file: A descriptor.
        extents: Of the file.
        write: Whether to the file; else from it.
    """

    def __init__(self, file: int, extents: Extents, *, write: bool) -> None:
        self._file, self._extents, self._write = file, extents, write
        self._num = min(THREADS, extents.offsets.size)
        self._left = deque(range(self._num))
        self._done = SimpleQueue[None]()

    def start(self, pool: ThreadPoolExecutor) -> None:
        """Have threads begin, as many as there can be."""
        try:
            for _ in range(self._num):
                pool.submit(self._help)
        except RuntimeError:  # the system allows no more: who waits does the rest
            pass

    def wait(self) -> None:
        """Do what nobody has begun, and return when all is done."""
        self._help()
        for _ in range(self._num):
            self._done.get()
        self._num = 0

    def _help(self) -> None:
        while True:
            try:
                first = self._left.popleft()
            except IndexError:
                return
            try:
                transfer_in_turn(self._file, self._extents, first, self._num, self._write)
            finally:
                self._done.put(None)
