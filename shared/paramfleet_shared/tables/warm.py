"""Compile the kernels before they are needed: ``python -m paramfleet_shared.tables.warm``.

Kernels are compiled once a machine, into the cache beside their source. An image build
or a launcher calls this once, so that no member of a job compiles while others wait.
"""

import contextlib
import sys
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.dense import DenseRange
from paramfleet_shared.tables.encoding import warm_codecs
from paramfleet_shared.tables.kernels.basics.readiness import alone, is_cold, note_compiled
from paramfleet_shared.tables.kernels.replica import (
    differing,
    note_slots,
    receive_rows,
    step_slots,
    take_deltas,
)
from paramfleet_shared.tables.kernels.stepping.rules import step_of
from paramfleet_shared.tables.kernels.waiting import append_waiting, forget_reported
from paramfleet_shared.tables.partition import are_in_shards, partition
from paramfleet_shared.tables.rows.routing import all_finite, merge_by_inverse, route
from paramfleet_shared.tables.rowstore import gather_rows, scatter_rows
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import OptimizerSpec, Storage, TableSpec

__all__ = ["main", "warm", "warm_all"]


def warm(spec: TableSpec) -> None:
    """Compile what a table needs, or load it from the cache; idempotent."""
    warm_codecs()
    if spec.kind == "dense":
        part = DenseRange(spec, 0, min(spec.size, 1))
        part.push(np.zeros_like(part.values), lr=0.0, step=1)
        all_finite(part.values)
        return
    ids = np.zeros(1, np.int64)
    shard = SparseShard(spec, max_rows=1)
    rows = np.zeros((1, spec.dim), np.float32)
    shard.pull(ids, rows, create=True)
    coded = np.zeros((1, spec.dim), np.uint16)
    shard.pull(ids, coded, create=True)
    shard.push(ids, coded, lr=0.0, step=1, unique=True)
    for is_unique in (True, False):
        shard.push(ids, rows, lr=0.0, step=1, unique=is_unique)
    shard.assign(*shard.export(0, 1))
    shard.read(ids)
    shard.image()
    shard.push(ids, rows, lr=0.0, step=1)
    shard.release(shard.remove(ids))
    unique, inverse, offsets = partition(route(ids, 1).ids, 1, by_id=True)
    are_in_shards(unique, offsets, first=0, num_shards=1)
    sums = merge_by_inverse(rows, inverse, unique.size)
    gather_rows(sums, ids, rows)
    scatter_rows(sums, ids, rows)
    all_finite(sums)
    _warm_replica(sums, ids)


def _warm_replica(rows: NDArray[np.float32], slots: NDArray[np.int64]) -> None:
    """Compile what a GEO worker does with its rows, and a pserver to send them."""
    flat, dim = rows.reshape(-1), rows.shape[1]
    layout = (dim, dim, 0)
    numbers = step_of(OptimizerSpec(rule="sgd"), sparse=True, lr=0.0, step=1)
    step_slots(numbers, flat, flat.copy(), slots, (dim, dim, 0, 0))
    take_deltas(flat, slots, flat.copy(), layout, (np.float32(1.0), False))
    receive_rows(flat, slots, flat.copy(), layout)
    differing(flat, 1, np.empty(2, np.int64), layout)
    note_slots(slots, np.zeros(1, np.uint8), slots.copy(), 0)
    marks, queue = np.zeros(1, np.uint32), np.empty(2, np.uint32)
    append_waiting(slots, marks, queue, 0, np.uint32(1))
    forget_reported(queue, (0, 1, 1), marks, np.uint32(1))


def warm_all() -> None:
    """Load what tables of any kind need, or compile it; idempotent."""
    warm(TableSpec(name="warm", kind="dense", size=1))
    for storage in get_args(Storage):
        warm(TableSpec(name="warm", kind="sparse", storage=storage))


def main() -> None:
    """Compile every kernel that this machine lacks, and load them all."""
    with alone() if is_cold() else contextlib.nullcontext():
        warm_all()
        note_compiled()
    sys.stdout.write("the table kernels are compiled\n")


if __name__ == "__main__":
    main()
