"""Compile the kernels before they are needed: ``python -m paramfleet_shared.tables.warm``.

Kernels are compiled once a machine, into the cache beside their source. A launcher calls this
once, so that no member of a job compiles while others wait; an image build calls it with
``all``. Words are the parts to compile, of ``kernels.basics.parts``; without any it is the
usual one.
"""

import argparse
import contextlib
import gc
import sys
from collections.abc import Sequence

import numpy as np

from paramfleet_shared.errors import UnavailableError
from paramfleet_shared.tables.dense import DenseRange
from paramfleet_shared.tables.encoding import WIRE_DTYPES, WireDtype, warm_codecs
from paramfleet_shared.tables.kernels.basics.parts import (
    ALL_PARTS,
    OWN_ROWS,
    USUAL,
    WIRE,
    Part,
)
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

__all__ = ["chosen", "main", "warm", "warm_all", "warm_usual"]

_EVERY = "all"

_STORAGES: dict[Part, tuple[Storage, WireDtype]] = {
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "coded-float32": ("float32", "bfloat16"),
    "coded-float16": ("float16", "bfloat16"),
    "coded-bfloat16": ("bfloat16", "bfloat16"),
}


def warm(spec: TableSpec, wire: WireDtype = "float32") -> None:
    """Compile what a table needs on a pserver, or load it from the cache; idempotent.

    Args:
        spec: The table.
        wire: How its numbers travel.
    """
    warm_codecs(("float32",) if wire == "float32" else WIRE_DTYPES)
    if spec.kind == "dense":
        part = DenseRange(spec, 0, min(spec.size, 1))
        part.push(np.zeros_like(part.values), lr=0.0, step=1)
        all_finite(part.values)
        return
    ids = np.zeros(1, np.int64)
    shard = SparseShard(spec, max_rows=1)
    rows = np.zeros((1, spec.dim), np.float32)
    shard.pull(ids, rows, create=True)
    if wire != "float32":
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
    marks, queue = np.zeros(1, np.uint32), np.empty(2, np.uint32)
    append_waiting(ids, marks, queue, 0, np.uint32(1))
    forget_reported(queue, (0, 1, 1), marks, np.uint32(1))


def _warm_own_rows() -> None:
    """Compile what a worker does with its own rows."""
    slots, dim = np.zeros(1, np.int64), 1
    flat = np.zeros(dim, np.float32)
    layout = (dim, dim, 0)
    numbers = step_of(OptimizerSpec(rule="sgd"), sparse=True, lr=0.0, step=1)
    step_slots(numbers, flat, flat.copy(), slots, (dim, dim, 0, 0))
    take_deltas(flat, slots, flat.copy(), layout, (np.float32(1.0), False))
    receive_rows(flat, slots, flat.copy(), layout)
    differing(flat, 1, np.empty(2, np.int64), layout)
    note_slots(slots, np.zeros(1, np.uint8), slots.copy(), 0)


def warm_all() -> None:
    """Load what tables of any kind need, or compile it; idempotent."""
    for part in ALL_PARTS:
        _warm_part(part)


def warm_usual() -> None:
    """Load what most tables need, whose rows are of float32; idempotent."""
    warm(TableSpec(name="warm", kind="dense", size=1))
    warm(TableSpec(name="warm", kind="sparse"))


def _warm_part(part: Part) -> None:
    if part == USUAL:
        warm_usual()
    elif part == WIRE:
        warm_codecs()
    elif part == OWN_ROWS:
        _warm_own_rows()
    else:
        storage, wire = _STORAGES[part]
        warm(TableSpec(name="warm", kind="sparse", storage=storage), wire)


def main(parts: Sequence[Part] = (USUAL,)) -> None:
    """Compile the kernels of some parts that this machine lacks, and load them all."""
    with alone() if any(map(is_cold, parts)) else contextlib.nullcontext():
        for part in parts:
            _warm_part(part)
            note_compiled(part)
    sys.stdout.write("the table kernels are compiled\n")


def chosen(words: Sequence[str]) -> tuple[Part, ...]:
    """Return the parts that words of a command name; where they name none it ends the process.

    Args:
        words: Parts, or ``all``; none for the usual one.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", default=[USUAL])
    named = parser.parse_args(words).parts
    unknown = set(named) - {*ALL_PARTS, _EVERY}
    if unknown:
        parser.error(f"no parts {sorted(unknown)}: there are {_EVERY}, {', '.join(ALL_PARTS)}")
    return tuple(part for part in ALL_PARTS if part in named or _EVERY in named)


if __name__ == "__main__":
    gc.disable()  # it would look at all that compiles, again and again: a tenth of the time
    try:
        main(chosen(sys.argv[1:]))
    except UnavailableError as error:
        sys.exit(str(error))
