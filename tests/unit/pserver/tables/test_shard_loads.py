"""Rows are counted by shard, some at a time."""

import numpy as np

from paramfleet_pserver.tables.shard_loads import RowCounter
from paramfleet_shared.tables.rows.routing import route
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import TableSpec

SHARDS = 4


def counted(counter: RowCounter, rows: SparseShard) -> list[int]:
    while counter.num_left(rows):
        counter.count(rows)
    return [int(num) for num in counter.rows]


def by_shard(ids: np.ndarray) -> list[int]:
    return [int(num) for num in np.diff(route(ids, SHARDS).offsets)]


def test_rows_that_were_removed_or_replaced_are_counted_anew() -> None:
    rows = SparseShard(TableSpec(name="e", kind="sparse", dim=2))
    counter, ids = RowCounter(range(SHARDS), SHARDS), np.arange(1000)
    rows.create(ids[:500])
    assert counted(counter, rows) == by_shard(ids[:500])
    rows.create(ids[500:])
    assert counted(counter, rows) == by_shard(ids)

    rows.release(rows.remove(ids[100:900]))
    assert counted(counter, rows) == by_shard(np.r_[ids[:100], ids[900:]])
    rows.create(np.arange(5000, 5100))

    assert counted(counter, rows) == by_shard(np.r_[ids[:100], ids[900:], 5000:5100])
    assert not counter.num_left(rows)
