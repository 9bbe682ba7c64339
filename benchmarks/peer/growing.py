"""A worker with tables of many sizes, whose steps are timed as those sizes grow."""

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from peer.ours import OursTable, OursWorker
from peer.work import GRAIN, LR, SEED, Burst, Work

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["GrowingDriver", "driver"]

NUM_BATCHES = 64
"""Different batches of a table: more of its rows than a processor's caches hold."""


class GrowingDriver:
    """A worker's commands.

    Args:
        work: Rows of a step; tables have sizes of their own.
        worker: Of a job.
    """

    def __init__(self, work: Work, worker: OursWorker) -> None:
        self._rows = work.rows
        self._worker = worker
        self._tables: dict[str, OursTable] = {}
        self._sizes: dict[str, int] = {}
        self._batches: dict[str, list[NDArray[np.int64]]] = {}
        self._grads: dict[str, NDArray[np.float32]] = {}
        self._num_done = 0

    def table(self, name: str, rows: int, dim: int, *, fill: bool) -> None:
        """Declare a table whose ids are 0 to ``rows`` - 1, and make its rows by pulls.

        Args:
            name: The table's.
            rows: How many.
            dim: Floats of a row.
            fill: Whether this worker makes them.
        """
        table = self._worker.table(name, dim)
        rng = np.random.default_rng((SEED, rows))
        self._tables[name] = table
        self._sizes[name] = rows
        self._batches[name] = [
            rng.choice(rows, self._rows, replace=False).astype(np.int64)
            for _ in range(NUM_BATCHES)
        ]
        self._grads[name] = np.full((self._rows, dim), GRAIN, np.float32)
        if fill:
            size = 4 * self._rows
            for start in range(0, rows, size):
                table.pull(np.arange(start, min(start + size, rows), dtype=np.int64))

    def burst(self, name: str, steps: int) -> dict[str, Any]:
        """Run steps on a table, 1 in flight; returns the fields of a ``Burst``."""
        table, batches, grads = self._tables[name], self._batches[name], self._grads[name]
        burst = Burst(0.0, [], [])
        begin = time.perf_counter()
        for number in range(self._num_done, self._num_done + steps):
            start = time.perf_counter()
            pulled = table.pull(batches[number % NUM_BATCHES])
            between = time.perf_counter()
            table.push(pulled, grads)
            burst.step_ms.append((time.perf_counter() - start) * 1e3)
            burst.pull_ms.append((between - start) * 1e3)
        self._num_done += steps
        return burst._replace(wall_s=time.perf_counter() - begin)._asdict()

    def count_wrong(self, name: str, steps: list[int]) -> int:
        """Return how many rows are not what some workers' steps make of zeros.

        Args:
            name: The table; all its workers' steps were on it.
            steps: How many each worker has done.
        """
        table, batches = self._tables[name], self._batches[name]
        num_pushes = np.zeros(self._sizes[name], np.int64)
        for number, batch in enumerate(batches):
            times = sum(len(range(number, done, NUM_BATCHES)) for done in steps)
            num_pushes[batch] += times
        num_wrong = 0
        for start in range(0, len(num_pushes), self._rows):
            ids = np.arange(start, min(start + self._rows, len(num_pushes)), dtype=np.int64)
            pulled = table.pull(ids)
            expected = num_pushes[pulled.ids] * np.float32(-LR * GRAIN)
            num_wrong += int((pulled.rows != expected[:, None]).any(axis=1).sum())
        return num_wrong

    def close(self) -> None:
        """Leave the job."""
        self._worker.close()


def driver(work: Work, redis: str, job: str, *, index: int, worker_num: int) -> GrowingDriver:
    """Return the commands of a worker that has joined the job."""
    worker = OursWorker(redis, job, index=index, worker_num=worker_num)
    return GrowingDriver(work, worker)
