"""Spans of a vector, and the updates that its values have missed."""

import time
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from paramfleet_shared.testing.patience import LATE_S
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


@given(st.lists(spans, min_size=1, max_size=6), st.integers(0, SIZE), st.integers(0, SIZE))
def test_each_value_that_steps_has_the_number_of_its_own_step(
    updates: list[list[Span]], a: int, b: int
) -> None:
    within = min(a, b), max(a, b)
    inside = mask_of([within])
    missed, counts = MissedUpdates(), np.zeros(SIZE, np.int64)
    for number, each in enumerate(updates, start=1):
        stepping = moved_back(moved(union(each), within), within[0])
        numbers = np.zeros(SIZE, np.int64)
        found = missed.step(stepping, number, within)
        for start, stop, step in found:
            numbers[start:stop] += step
        steps = mask_of(stepping)
        np.testing.assert_array_equal(numbers, np.where(steps, number - counts, 0))
        assert all(one[1:] != (other[0], other[2]) for one, other in pairwise(found))
        counts += inside & ~steps

    for start, stop, count in missed.pieces((0, SIZE)):
        assert (counts[start:stop] == count).all()
    again = MissedUpdates((at, at + 1, int(n)) for at, n in enumerate(counts) if n)
    assert again == missed, "neighbours with the same count are one span"


def moved_back(found: tuple[Span, ...], by: int) -> tuple[Span, ...]:
    return tuple((start + by, stop + by) for start, stop in found)


def test_many_spans_cost_no_more_each_than_few() -> None:
    num = 100_000
    missed, size = MissedUpdates(), 2 * num
    began = time.perf_counter()

    missed.step([(2 * each, 2 * each + 1) for each in range(num)], 1, (0, size))
    missed.step([(2 * each + 1, 2 * each + 2) for each in range(num)], 2, (0, size))

    assert time.perf_counter() - began < LATE_S, "a server does nothing else meanwhile"
    assert missed.counts() == ((0, size, 1),)


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
        [[0, 2, 1 << 63]],
        ["abc"],
    ],
)
def test_counts_that_are_none_are_refused(counts: object) -> None:
    with pytest.raises(ValueError, match=r"counts|isn't"):
        MissedUpdates.checked(counts, SIZE)
