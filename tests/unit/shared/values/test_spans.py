"""Spans of a vector, and the updates that its values have missed."""

from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from paramfleet_shared.values.spans import MissedUpdates, Span, complement, moved, union

SIZE = 24

spans = st.lists(
    st.tuples(st.integers(0, SIZE - 1), st.integers(1, 8)).map(
        lambda each: (each[0], min(SIZE, each[0] + each[1]))
    ),
    max_size=5,
)


def mask_of(given_spans: list[Span] | tuple[Span, ...]) -> np.ndarray:
    mask = np.zeros(SIZE, np.bool_)
    for start, stop in given_spans:
        mask[start:stop] = True
    return mask


@given(spans, st.integers(0, SIZE), st.integers(0, SIZE))
def test_spans_are_the_values_that_a_mask_has(given_spans: list[Span], a: int, b: int) -> None:
    first, last = sorted((a, b))
    found = union(given_spans)

    np.testing.assert_array_equal(mask_of(found), mask_of(given_spans))
    assert all(one[1] < other[0] for one, other in pairwise(found))
    rest = mask_of(complement(found, (first, last)))
    np.testing.assert_array_equal(rest[first:last], ~mask_of(found)[first:last])
    assert not rest[:first].any()
    assert not rest[last:].any()
    inside = mask_of(moved(found, (first, last)))
    np.testing.assert_array_equal(inside[: last - first], mask_of(found)[first:last])


@given(st.lists(spans, max_size=6), st.integers(0, SIZE))
def test_missed_updates_are_counted_for_each_value(updates: list[list[Span]], cut: int) -> None:
    missed, counts = MissedUpdates(), np.zeros(SIZE, np.int64)
    for each in updates:
        missed.add(union(each))
        counts += mask_of(each)

    found = np.full(SIZE, -1)
    for start, stop, count in missed.pieces((0, SIZE)):
        found[start:stop] = count
    np.testing.assert_array_equal(found, counts)
    assert bool(missed) == bool(counts.any())
    parts = [(0, missed.part((0, cut))), (cut, missed.part((cut, SIZE)))]
    assert MissedUpdates.joined(parts) == missed
    assert MissedUpdates.checked([list(each) for each in missed.counts()], SIZE) == missed


@pytest.mark.parametrize(
    "counts",
    [
        None,
        [[0, 2]],
        [[0, 2, 0]],
        [[2, 2, 1]],
        [[0, SIZE + 1, 1]],
        [[0, 2, 1], [1, 3, 1]],
        [[0, 2.0, 1]],
        ["abc"],
    ],
)
def test_counts_that_are_none_are_refused(counts: object) -> None:
    with pytest.raises(ValueError, match=r"counts|isn't"):
        MissedUpdates.checked(counts, SIZE)
