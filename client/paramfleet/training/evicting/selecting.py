"""Which rows are to go, found by questions about how many there are of which keys.

Rows may be on many pservers. Counting them by their keys, in ever smaller bins, finds the key
below which as many rows lie as are to go; these alone are listed then.
"""

from collections.abc import Callable, Generator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.rows.evicting import BIN_BITS, KEY_BITS, NUM_BINS, count_by_key

__all__ = ["Answer", "Below", "Count", "Question", "Selection", "answer_of", "select"]

_ALL_AT_ONCE = 1 << 16
"""Rows of the last bin that are listed rather than counted once more."""


class Count(NamedTuple):
    """How many rows have keys in each bin?"""

    low: int
    shift: int
    """A bin has 2 to the power of this of keys; the first begins with ``low``."""


class Below(NamedTuple):
    """Which rows have keys below one? Answered with ids and keys, int64 [n] each."""

    key: int


Question = Count | Below
Answer = tuple[NDArray[np.int64], ...]
"""Of ``Count`` the counts alone, int64 [NUM_BINS]; of ``Below`` ids and keys."""

Selection = Generator[Question, Answer, NDArray[np.int64]]
"""Yields questions, is sent the answers, and returns the ids of rows that are to go."""


def select(num_to_evict: Callable[[int, int], int]) -> Selection:
    """Find the rows that are to go: int64 [n], the first ones by their keys.

    Rows that change meanwhile may be among them or not; never more than were to go.

    Args:
        num_to_evict: Returns how many, given how many rows there are and have expired.
    """
    shift = KEY_BITS - BIN_BITS
    (counts,) = yield Count(0, shift)
    num = num_to_evict(int(counts.sum()), int(counts[: NUM_BINS // 2].sum()))
    if not num:
        return np.empty(0, np.int64)
    low, before = 0, 0
    while True:
        ends = before + np.cumsum(counts)
        last = int(np.searchsorted(ends, num))  # the bin of the last row that goes
        if last >= NUM_BINS:  # rows went away meanwhile
            last = NUM_BINS - 1
        end = low + ((last + 1) << shift)
        if int(counts[last]) <= _ALL_AT_ONCE or not shift or int(ends[last]) == num:
            break
        before = int(ends[last] - counts[last])
        low += last << shift
        shift = max(0, shift - BIN_BITS)
        (counts,) = yield Count(low, shift)
    ids, keys = yield Below(end)
    if len(ids) <= num:
        return ids
    first: NDArray[np.int64] = ids[np.lexsort((ids, keys))[:num]]
    return first


def answer_of(
    valued: tuple[NDArray[np.int64], NDArray[np.int64]], selection: Selection
) -> NDArray[np.int64]:
    """Return what a selection finds among rows that are all at hand.

    Args:
        valued: Their ids and their keys, int64 [n] each.
        selection: Asks for what it has to know.
    """
    ids, keys = valued
    try:
        question = next(selection)
        while True:
            if isinstance(question, Count):
                answer: Answer = (count_by_key(keys, low=question.low, shift=question.shift),)
            else:
                goes = keys < question.key
                answer = ids[goes], keys[goes]
            question = selection.send(answer)
    except StopIteration as done:
        found: NDArray[np.int64] = done.value
        return found
