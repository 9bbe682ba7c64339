"""Batches as they travel: each id once, sorted by shard, and the way back."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from paramfleet_shared.tables.partition import are_in_shards, partition
from paramfleet_shared.tables.rows.routing import route
from paramfleet_shared.tables.rowstore import RowShapeError

IDS = hnp.arrays(
    np.int64, st.integers(0, 300), elements=st.integers(0, 2**63 - 1) | st.integers(0, 40)
)
NUM_SHARDS = st.sampled_from([1, 2, 3, 8, 1000, 65_536])


@given(ids=IDS, num_shards=NUM_SHARDS)
@example(ids=np.zeros(300, np.int64), num_shards=1)
def test_a_batch_is_each_id_once_sorted_by_shard_with_the_way_back(
    ids: np.ndarray, num_shards: int
) -> None:
    before = ids.copy()

    unique, inverse, offsets = partition(ids, num_shards)

    np.testing.assert_array_equal(ids, before)
    np.testing.assert_array_equal(unique[inverse], ids)
    assert len(set(unique.tolist())) == len(unique)
    assert (offsets.size, offsets[0], offsets[-1]) == (num_shards + 1, 0, len(unique))
    assert [a.dtype for a in (unique, inverse, offsets)] == [np.int64] * 3
    first_seen = np.array(list(dict.fromkeys(ids.tolist())), np.int64)
    routed = route(first_seen, num_shards)
    np.testing.assert_array_equal(unique, routed.ids, "by first appearance within a shard")
    np.testing.assert_array_equal(offsets, routed.offsets, "the shards pservers know")


@given(ids=IDS, num_shards=NUM_SHARDS)
@example(ids=np.zeros(300, np.int64), num_shards=1)
def test_inside_a_shard_ids_can_be_sorted_by_value(ids: np.ndarray, num_shards: int) -> None:
    before = ids.copy()

    unique, inverse, offsets = partition(ids, num_shards, by_id=True)

    np.testing.assert_array_equal(ids, before)
    np.testing.assert_array_equal(unique[inverse], ids)
    by_appearance = partition(ids, num_shards)
    np.testing.assert_array_equal(offsets, by_appearance.offsets)
    shards = np.repeat(np.arange(num_shards), np.diff(offsets))
    expected = by_appearance.ids[np.lexsort((by_appearance.ids, shards))]
    np.testing.assert_array_equal(unique, expected)


@given(ids=IDS, num_shards=NUM_SHARDS, place=st.integers(0, 300), data=st.data())
def test_an_id_in_another_shard_than_its_own_is_noticed(
    ids: np.ndarray, num_shards: int, place: int, data: st.DataObject
) -> None:
    unique, _, offsets = partition(ids, num_shards)
    start = data.draw(st.integers(0, num_shards - 1))
    stop = data.draw(st.integers(start + 1, num_shards))
    bounds = offsets[start : stop + 1] - offsets[start]
    own = unique[offsets[start] : offsets[stop]].copy()
    assert are_in_shards(own, bounds, first=start, num_shards=num_shards)
    if not len(own):
        return
    place %= len(own)
    shard = int(np.searchsorted(bounds, place, side="right")) - 1 + start
    own[place] = data.draw(st.integers(-(2**63), 2**63 - 1))
    stays = partition(own[place : place + 1], num_shards).offsets[shard : shard + 2].tolist()

    found = are_in_shards(own, bounds, first=start, num_shards=num_shards)

    assert found is (stays == [0, 1])


@given(ids=IDS, num_shards=NUM_SHARDS)
@settings(max_examples=30)
def test_a_partitioned_batch_stays_as_it_is(ids: np.ndarray, num_shards: int) -> None:
    once = partition(ids, num_shards)

    again = partition(once.ids, num_shards)

    np.testing.assert_array_equal(again.ids, once.ids)
    np.testing.assert_array_equal(again.inverse, np.arange(once.ids.size))
    np.testing.assert_array_equal(again.offsets, once.offsets)


def test_a_large_batch_of_many_duplicates_finds_its_way_back() -> None:
    ids = np.random.default_rng(0).integers(0, 20_000, 300_000)

    unique, inverse, _ = partition(ids, 8)

    np.testing.assert_array_equal(unique[inverse], ids)
    assert unique.size == np.unique(ids).size


def test_ids_off_the_wire_may_be_read_only_or_a_slice_of_steps() -> None:
    ids = np.arange(40)[::2]
    frozen = np.arange(20) * 2
    frozen.flags.writeable = False

    for one, other in zip(partition(ids, 3), partition(frozen, 3), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "ids", [np.zeros(3), np.zeros(3, np.int32), np.zeros((3, 1), np.int64)]
)
def test_what_is_no_list_of_ids_is_refused(ids: np.ndarray) -> None:
    with pytest.raises(RowShapeError):
        partition(ids, 8)
