"""Ids of a pass have places, and keep them in the next one."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from paramfleet.tables.device.pass_ids import (
    IdOutsidePassError,
    IdSet,
    PassIds,
    PassWithoutIdsError,
)

IDS = st.lists(
    st.integers(-5, 40) | st.sampled_from([-(2**63), 2**63 - 1]), min_size=1, max_size=40
)


def id_set(ids: list[int]) -> IdSet:
    found = IdSet("items")
    found.try_to_add(np.array(ids, np.int64))
    found.keep()
    return found


def test_ids_that_were_only_tried_are_not_of_the_set() -> None:
    found = id_set([7, 3])
    assert found.try_to_add(np.array([3, 9, 8, 9])).tolist() == [1, 2, 3, 2]
    assert (len(found), found.num_tried, found.ids.tolist()) == (2, 4, [7, 3])
    assert found.find(np.array([9, 3, 1])).tolist() == [-1, 1, -1]


def test_a_pass_is_searched_while_the_next_one_is_made_of_it() -> None:
    ids = np.arange(0, 20_000, 2)
    now = PassIds.of("items", id_set(ids.tolist()))
    following = id_set(np.arange(20_000).tolist())

    def make_next() -> None:
        for _ in range(200):
            later = PassIds.of("items", following, now)
            assert_array_equal(later.is_new, np.arange(20_000) % 2 == 1)

    with ThreadPoolExecutor(1) as reader:
        making = reader.submit(make_next)
        while not making.done():
            assert_array_equal(now.places_of(ids, batch=0), np.arange(10_000))
        making.result()


def test_a_first_pass_has_its_different_ids_in_order() -> None:
    found = PassIds.of("items", id_set([40, -10, 40, 30]))
    assert found.ids.tolist() == found.new_ids.tolist() == [40, -10, 30]
    assert found.capacity == 3


@given(st.lists(IDS, min_size=2, max_size=5))
def test_common_ids_keep_their_places_and_the_others_have_each_one_of_their_own(
    passes: list[list[int]],
) -> None:
    former: PassIds | None = None
    for ids in passes:
        found = PassIds.of("items", id_set(ids), former)
        assert found.ids.tolist() == list(dict.fromkeys(ids))
        assert len(set(found.places.tolist())) == len(found.ids)
        assert 0 <= found.places.min() <= found.places.max() < found.capacity
        before = {} if former is None else dict(zip(former.ids, former.places, strict=True))
        for each, place, is_new in zip(found.ids, found.places, found.is_new, strict=True):
            assert is_new == (each not in before)
            assert is_new or place == before[each]
        most = 0 if former is None else former.capacity
        assert found.capacity == max(most, len(found.ids))
        former = found


def test_places_are_those_of_the_ids_asked_for() -> None:
    found = PassIds.of("items", id_set([5, -(2**63), -1]))
    asked = np.array([-1, 5, -(2**63)])
    places = dict(zip(found.ids.tolist(), found.places.tolist(), strict=True))
    assert_array_equal(
        found.places_of(asked, batch=0), [places[each] for each in asked.tolist()]
    )


@pytest.mark.parametrize("stranger", [-4, 15, 99])
def test_an_id_of_no_batch_is_refused_by_table_id_and_batch(stranger: int) -> None:
    found = PassIds.of("items", id_set([10, 20, 30]))
    with pytest.raises(IdOutsidePassError) as caught:
        found.places_of(np.array([10, stranger]), batch=8)
    error = caught.value
    assert (error.table, error.id, error.count, error.batch) == ("items", stranger, 1, 8)
    assert f"id {stranger} of batch 8" in str(error)


def test_a_pass_without_ids_is_refused_by_table() -> None:
    with pytest.raises(PassWithoutIdsError, match="no id of table 'items'"):
        PassIds.of("items", id_set([]))
