"""By how many workers a row is changed at the same time."""

import tracemalloc

import numpy as np

from paramfleet_pserver.core.geo.sharers import Sharers
from paramfleet_shared.values.ids import Rank, Step

ADA, BOB, EVE = Rank(0), Rank(1), Rank(2)


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def of(*ranks: Rank) -> Sharers:
    sharers = Sharers()
    for rank in ranks:
        sharers.join(rank)
    return sharers


def exchanged(sharers: Sharers, rank: Rank, step: int, *rows: int) -> list[int]:
    counts = sharers.count(ids(*rows), writer=rank, step=Step(step))
    sharers.note(ids(*rows), writer=rank)
    return [int(count) for count in counts]


def test_a_row_that_one_worker_changes_is_its_own() -> None:
    sharers = of(ADA, BOB)

    assert [exchanged(sharers, ADA, step, 5, 9) for step in range(3)] == [[1, 1]] * 3


def test_a_row_that_all_change_has_all_as_sharers() -> None:
    sharers = of(ADA, BOB, EVE)

    first = [exchanged(sharers, rank, 1, 5) for rank in (ADA, BOB, EVE)]
    then = [exchanged(sharers, rank, 2, 5) for rank in (ADA, BOB, EVE)]

    assert first == [[1], [2], [3]], "nobody knows of those to come"
    assert then == [[3], [3], [3]]


def test_a_change_of_a_period_before_is_of_no_account() -> None:
    sharers = of(ADA, BOB)
    exchanged(sharers, BOB, 1, 5)

    assert exchanged(sharers, ADA, 1, 7) == [1]
    assert exchanged(sharers, ADA, 2, 5) == [1]


def test_the_messages_of_one_step_are_of_one_period() -> None:
    sharers = of(ADA, BOB)
    exchanged(sharers, BOB, 1, 5, 6)

    assert [exchanged(sharers, ADA, 1, row) for row in (5, 6)] == [[2], [2]]
    assert exchanged(sharers, ADA, 2, 5) == [1]


def test_a_quick_worker_counts_as_one() -> None:
    sharers = of(ADA, BOB)
    for step in range(600):
        exchanged(sharers, BOB, step, 5)

    assert exchanged(sharers, ADA, 1, 5) == [2]


def test_rows_that_are_new_or_unknown_have_one_sharer() -> None:
    sharers = of(ADA, BOB)
    exchanged(sharers, BOB, 1, 5)

    counts = sharers.count(ids(-1, 5, 4_000_000), writer=ADA, step=Step(1))

    assert counts.tolist() == [1, 2, 1]


def test_one_who_left_shares_nothing() -> None:
    sharers = of(ADA, BOB, EVE)
    exchanged(sharers, BOB, 1, 5)
    exchanged(sharers, EVE, 1, 5)

    sharers.leave(EVE)

    assert exchanged(sharers, ADA, 1, 5) == [2]
    assert sharers.count(ids(5), writer=EVE, step=Step(2)).tolist() == [1]


def test_one_who_comes_late_shares_from_then_on() -> None:
    sharers = of(ADA)
    exchanged(sharers, ADA, 1, 5)
    sharers.join(BOB)
    sharers.join(BOB)

    assert exchanged(sharers, BOB, 1, 5) == [1]
    assert exchanged(sharers, ADA, 2, 5) == [2]
    assert exchanged(sharers, BOB, 2, 5) == [2]


def test_the_bytes_of_a_row_are_what_the_arrays_take_at_most() -> None:
    sharers, num_rows = of(ADA, BOB, EVE), 100_000
    before = sharers.row_bytes
    tracemalloc.start()

    for end in range(1000, num_rows + 1, 1000):
        exchanged(sharers, ADA, end, *range(end - 1000, end))
        exchanged(sharers, BOB, end, *range(end - 1000, end))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert before == 0, "nothing is kept of rows whose sharers nobody counts"
    assert sharers.row_bytes * num_rows / 2 < taken <= sharers.row_bytes * num_rows * 1.01


def test_changes_of_removed_rows_are_of_no_account() -> None:
    sharers = Sharers()
    for rank in range(2):
        sharers.join(Rank(rank))
    sharers.note(np.array([3, 4]), writer=Rank(1))

    sharers.forget(np.array([4, 900]))

    assert sharers.count(np.array([3, 4]), writer=Rank(0), step=Step(1)).tolist() == [2, 1]
