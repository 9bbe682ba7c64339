"""The rows that are to go are found by counting."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

from paramfleet.training.evicting.selecting import (
    Count,
    Question,
    Selection,
    answer_of,
    select,
)
from paramfleet_shared.tables.rows.evicting import KEY_BITS, count_by_key


def chosen(keys: NDArray[np.int64], num: int) -> list[int]:
    """Return which rows go, by number."""
    ids = np.arange(len(keys))
    found: list[int] = answer_of((ids, keys), select(lambda _rows, _expired: num)).tolist()
    return sorted(found)


@given(
    keys=st.lists(
        st.one_of(
            st.integers(0, (1 << KEY_BITS) - 1),
            st.integers(0, 40),
            st.integers((1 << 59) - 20, (1 << 59) + 20),
        ),
        min_size=1,
        max_size=300,
    ),
    share=st.floats(0, 1),
)
def test_as_many_go_as_are_to_and_those_of_the_least_keys(
    keys: list[int], share: float
) -> None:
    num = int(share * len(keys))
    in_order = sorted(range(len(keys)), key=lambda each: (keys[each], each))
    assert chosen(np.array(keys, np.int64), num) == sorted(in_order[:num])


def test_many_equal_keys_are_counted_down_to_the_last_bit() -> None:
    keys = np.full(200_000, (1 << 58) + 5)
    keys[::2] += 1
    found = chosen(keys, 150_000)
    assert len(found) == 150_000
    assert set(range(1, 200_000, 2)) <= set(found)


def test_how_many_go_depends_on_how_many_there_are_and_have_expired() -> None:
    asked = []

    def note(num_rows: int, num_expired: int) -> int:
        asked.append((num_rows, num_expired))
        return 0

    keys = np.array([0, 5, (1 << 59) - 1, 1 << 59, (1 << 60) - 1])
    assert answer_of((np.arange(5), keys), select(note)).size == 0
    assert asked == [(5, 3)]


def test_never_more_go_than_were_to_though_rows_change_meanwhile() -> None:
    random = np.random.default_rng(1)
    num_asked = 0

    def go_on(selection: Selection, question: Question) -> Question:
        nonlocal num_asked
        keys = random.integers(0, 1 << KEY_BITS, 200_000 if num_asked < 1 else 50)
        num_asked += 1
        if isinstance(question, Count):
            return selection.send((count_by_key(keys, low=question.low, shift=question.shift),))
        goes = keys < question.key
        return selection.send((np.flatnonzero(goes), keys[goes]))

    def run(selection: Selection) -> None:
        question = next(selection)
        while num_asked < 9:
            question = go_on(selection, question)

    with pytest.raises(StopIteration) as ended:
        run(select(lambda _rows, _expired: 1000))
    assert len(ended.value.value) <= 1000
