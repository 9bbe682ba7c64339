"""paramfleet's calls of one kind in a row: pulls, pushes, or pulls with a push after each."""

import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.rows.batch import RowIds
from peer.ours import OursWorker
from peer.work import CALL_TIMEOUT_S, SEED, Pulled, Work

__all__ = ["RowCalls", "driver"]

MAX_BATCHES, MAX_ROWS = 64, 2_000_000
"""Different batches: Paddle merges pushes that wait, and less when their rows differ."""
MAX_PUSHES = 2
"""Pushes that are on their way at most, as in async training with its default."""

_CHUNK = 100_000


class RowCalls:
    """A worker whose pushes it doesn't wait for, up to ``MAX_PUSHES``.

    Args:
        work: The table's size.
        worker: Joined.
    """

    def __init__(self, work: Work, worker: OursWorker) -> None:
        self._work = work
        self._num_shards = worker.pservers.placement.num_shards
        self._table = worker.table("rows", work.dim)
        self._pusher = ThreadPoolExecutor(MAX_PUSHES)
        self._pushes: deque[Future[None]] = deque()
        self._batches: dict[int, list[tuple[NDArray[np.int64], NDArray[np.float32]]]] = {}

    def fill(self) -> None:
        """Make every row."""
        for start in range(0, self._work.table_rows, _CHUNK):
            end = min(start + _CHUNK, self._work.table_rows)
            self._table.pull(np.arange(start, end, dtype=np.int64))

    def calls(self, kind: str, rows: int, seconds: float) -> dict[str, float]:
        """Call for about so many seconds, one call after the other; then wait for pushes."""
        batches = self._batches.setdefault(rows, self._batches_of(rows))
        self._call(kind, *batches[-1])
        self._settle(0)
        num = 0
        start = time.perf_counter()
        while not num or time.perf_counter() - start < seconds:
            self._call(kind, *batches[num % len(batches)])
            num += 1
        self._settle(0)
        return {"rows_per_s": rows * num / (time.perf_counter() - start)}

    def close(self) -> None:
        """Leave the job."""
        self._pusher.shutdown()
        self._table.close()

    def _call(self, kind: str, ids: NDArray[np.int64], grads: NDArray[np.float32]) -> None:
        if kind == "push":
            unique, _, offsets = partition(ids, self._num_shards)
            pulled = Pulled(unique, grads, RowIds(unique, offsets))
        else:
            pulled = self._table.pull(ids)
        if kind != "pull":
            self._settle(MAX_PUSHES - 1)
            self._pushes.append(self._pusher.submit(self._table.push, pulled, grads))

    def _settle(self, num_left: int) -> None:
        while len(self._pushes) > num_left:
            self._pushes.popleft().result(CALL_TIMEOUT_S)

    def _batches_of(self, rows: int) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        rng = np.random.default_rng((SEED, rows))
        return [
            (
                rng.permutation(self._work.table_rows)[:rows].astype(np.int64),
                rng.standard_normal((rows, self._work.dim), np.float32) * np.float32(2.0**-12),
            )
            for _ in range(min(MAX_BATCHES, MAX_ROWS // rows))
        ]


def driver(work: Work, redis: str, job: str) -> RowCalls:
    """Return the commands of a client that has joined the job."""
    return RowCalls(work, OursWorker(redis, job))
