"""Batches: duplicates, shards, sums, and the check for numbers that are none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.rows.routing import all_finite, merge_by_inverse, route
from paramfleet_shared.tables.rowstore import RowShapeError

IDS = hnp.arrays(
    np.int64, st.integers(0, 200), elements=st.integers(0, 2**63 - 1) | st.integers(0, 9)
)

SHARDS_OF_8 = [0, 5, 1, 4, 0, 1]


@given(ids=IDS, num_shards=st.sampled_from([1, 2, 7, 8, 1000]))
def test_routing_sorts_by_shard_keeps_order_and_says_where_each_id_stood(
    ids: np.ndarray, num_shards: int
) -> None:
    routed = route(ids, num_shards)

    np.testing.assert_array_equal(routed.ids, ids[routed.positions])
    assert sorted(routed.positions) == list(range(ids.size))
    assert routed.offsets[0] == 0
    assert routed.offsets[-1] == ids.size
    for shard in range(num_shards):
        part = slice(routed.offsets[shard], routed.offsets[shard + 1])
        assert (np.diff(routed.positions[part]) > 0).all()
        alone = route(routed.ids[part], num_shards).offsets
        assert alone[shard + 1] - alone[shard] == routed.ids[part].size


def test_every_shape_of_ids_spreads_evenly_over_the_shards() -> None:
    i = np.arange(80_000)
    for ids in (i, i * 8, i << 32, (i % 26 << 54) | i // 26):
        sizes = np.diff(route(ids, 8).offsets)
        assert (abs(sizes - 10_000) < 500).all()


def test_the_shard_of_an_id_never_changes() -> None:
    ids = np.array([0, 1, 2, 3, 10**6, 2**63 - 1], np.int64)

    shards = np.empty(6, np.int64)
    routed = route(ids, 8)
    shards[routed.positions] = np.repeat(np.arange(8), np.diff(routed.offsets))

    assert shards.tolist() == SHARDS_OF_8


@given(ids=IDS)
def test_one_shard_keeps_the_order_of_first_appearance_and_the_way_back(
    ids: np.ndarray,
) -> None:
    unique, inverse, _ = partition(ids, 1)

    assert unique.tolist() == list(dict.fromkeys(ids.tolist()))
    np.testing.assert_array_equal(unique[inverse], ids)


@pytest.mark.parametrize("dim", [1, 8, 19])
def test_merging_sums_the_gradients_of_each_id(dim: int) -> None:
    rng = np.random.default_rng(0)
    unique, inverse, _ = partition(rng.integers(0, 50, 400), 1)
    grads = rng.standard_normal((400, dim), np.float32)

    sums = merge_by_inverse(grads, inverse, unique.size)

    want = np.zeros((unique.size, dim), np.float32)
    np.add.at(want, inverse, grads)
    np.testing.assert_array_equal(sums, want)


def test_merging_refuses_gradients_that_are_not_one_a_row() -> None:
    with pytest.raises(RowShapeError):
        merge_by_inverse(np.ones((3, 2), np.float32), np.zeros(4, np.int64), 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 4095, 4096, 9999])
def test_a_number_that_is_none_is_found_wherever_it_stands(bad: float, place: int) -> None:
    numbers = np.full((100, 100), np.finfo(np.float32).max, np.float32)
    assert all_finite(numbers)

    numbers.reshape(-1)[place] = bad

    assert not all_finite(numbers)


def test_nothing_is_finite() -> None:
    assert all_finite(np.empty((0, 4), np.float32))


def test_only_float32_is_checked() -> None:
    with pytest.raises(RowShapeError):
        all_finite(np.zeros(3))
