"""Rows a second through one shard of a sparse table: ``python benchmarks/table.py``.

One thread, 1 M rows of 16 floats, batches of 106,496 ids (4096 examples x 26 features)
drawn uniformly: the worst case for caches. Figures are medians over the batches.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.routing import dedup, merge_by_inverse, route
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec
from paramfleet_shared.tables.warm import warm

NUM_ROWS = 1_000_000
DIM = 16
BATCH = 4096 * 26
NUM_BATCHES = 20


def report(name: str, call: Callable[[int], object]) -> None:
    """Print the median of ``call`` over the batches, in million rows a second."""
    times_s = []
    for i in range(NUM_BATCHES):
        start = time.perf_counter()
        call(i)
        times_s.append(time.perf_counter() - start)
    median, worst_ms = BATCH / statistics.median(times_s) / 1e6, max(times_s) * 1e3
    print(f"{name:24} {median:7.1f} M rows/s   slowest batch {worst_ms:6.2f} ms")


def measure(spec: TableSpec, universe: NDArray[np.int64], batches: NDArray[np.int64]) -> None:
    """Fill a shard, then read and step it."""
    shard = SparseShard(spec, max_rows=2 * NUM_ROWS)
    out = np.empty((BATCH, DIM), np.float32)
    grads = np.random.default_rng(1).standard_normal((BATCH, DIM), np.float32)
    name = spec.optimizer.rule
    start = time.perf_counter()
    for ids in np.array_split(universe, NUM_ROWS // BATCH + 1):
        shard.pull(ids, out[: ids.size], create=True)
    rate = NUM_ROWS / (time.perf_counter() - start) / 1e6
    print(f"{name + ' create':24} {rate:7.1f} M rows/s")
    report(f"{name} pull", lambda i: shard.pull(batches[i], out, create=True))
    report(f"{name} push", lambda i: shard.push(batches[i], grads, lr=0.01, step=i + 1))
    print(f"{name + ' memory':24} {shard.num_bytes / shard.num_rows:7.1f} bytes/row")


def main() -> None:
    """Measure each rule, then the batch operations."""
    rng = np.random.default_rng(0)
    universe = np.unique(rng.integers(0, 2**63, 2 * NUM_ROWS, np.int64))[:NUM_ROWS]
    rng.shuffle(universe)
    batches = universe[rng.integers(0, NUM_ROWS, (NUM_BATCHES, BATCH))]
    initializer = InitializerSpec(kind="uniform", low=-0.01, high=0.01)
    for rule in ("sgd", "momentum", "adagrad", "adam"):
        spec = TableSpec(
            name="rows",
            kind="sparse",
            dim=DIM,
            initializer=initializer,
            optimizer=OptimizerSpec(rule=rule),
        )
        warm(spec)
        measure(spec, universe, batches)
    grads = rng.standard_normal((BATCH, DIM), np.float32)
    inverses = [dedup(ids) for ids in batches]
    report("route, 8 shards", lambda i: route(batches[i], 8))
    report("dedup", lambda i: dedup(batches[i]))
    report("merge", lambda i: merge_by_inverse(grads, inverses[i][1], inverses[i][0].size))


if __name__ == "__main__":
    main()
