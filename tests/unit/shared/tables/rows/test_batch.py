"""Rows sorted by shard: a server's part is a slice."""

import numpy as np

from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.rows.batch import RowBatch, RowIds

IDS = np.random.default_rng(0).integers(0, 500, 300)


def rows_of(num_shards: int = 6) -> RowIds:
    parted = partition(IDS, num_shards)
    return RowIds(parted.ids, parted.offsets)


def test_the_parts_of_neighbouring_shards_are_all_rows_in_order() -> None:
    rows = rows_of()
    parts = []
    for shards in (range(2), range(2, 3), range(3, 6)):
        where, bounds = rows.of(shards)
        assert where == rows.within(shards)
        assert bounds[0] == 0
        assert bounds[-1] == where.stop - where.start
        for number, shard in enumerate(shards):
            part = rows.ids[where][bounds[number] : bounds[number + 1]]
            np.testing.assert_array_equal(part, rows.ids[rows.within(range(shard, shard + 1))])
        parts.append(rows.ids[where])

    np.testing.assert_array_equal(np.concatenate(parts), rows.ids)


def test_rows_are_sorted_inside_their_shards_and_say_where_they_stood() -> None:
    rows = rows_of()

    in_order, order = rows.sorted()

    assert order is not None
    np.testing.assert_array_equal(in_order.ids, rows.ids[order])
    np.testing.assert_array_equal(in_order.offsets, rows.offsets)
    for shard in range(6):
        own = in_order.ids[in_order.within(range(shard, shard + 1))]
        assert (np.diff(own) > 0).all()
    assert in_order.sorted() == (in_order, None)


def test_a_batch_says_which_rows_its_numbers_are_of() -> None:
    rows = rows_of()
    batch = RowBatch(rows.ids, np.ones((len(rows.ids), 2), np.float32), rows.offsets)

    assert batch.rows.ids is rows.ids
    assert batch.rows.offsets is rows.offsets
