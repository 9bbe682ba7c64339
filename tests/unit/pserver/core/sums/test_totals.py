"""Sums over the workers of a step: whole when nobody's part is missing."""

import numpy as np
import pytest
from numpy.typing import NDArray

from paramfleet_pserver.core.sums.totals import StepTotals
from paramfleet_shared.errors.served import TotalMismatchError, TotalsTooLargeError
from paramfleet_shared.values.ids import Rank

ADA, BOB, EVE = Rank(0), Rank(1), Rank(2)


def vector(*values: float) -> NDArray[np.float64]:
    return np.array(values, np.float64)


def test_a_sum_is_whole_with_the_last_awaited_part() -> None:
    totals = StepTotals()
    totals.add("x", BOB, vector(1, 2))

    assert totals.settle([ADA, BOB]) == []
    assert totals.missing("x", [ADA, BOB]) == [ADA]
    assert not totals.is_whole("x")

    totals.add("x", ADA, vector(10, 20))
    assert totals.settle([ADA, BOB]) == ["x"]
    assert totals.settle([ADA, BOB]) == [], "once"
    assert totals.of("x").tolist() == [11, 22]


def test_who_has_left_is_not_awaited_and_what_it_gave_counts() -> None:
    totals = StepTotals()
    totals.add("x", ADA, vector(1))
    totals.add("x", EVE, vector(5))

    assert totals.settle([ADA]) == ["x"]
    assert totals.of("x").tolist() == [6]


def test_the_order_of_arrival_does_not_change_one_bit() -> None:
    parts = {ADA: vector(1e16), BOB: vector(1.0), EVE: vector(-1e16)}
    found = []
    for order in ([ADA, BOB, EVE], [EVE, ADA, BOB], [BOB, EVE, ADA]):
        totals = StepTotals()
        for rank in order:
            totals.add("x", rank, parts[rank])
        totals.settle(list(parts))
        found.append(float(totals.of("x")[0]))

    assert len(set(found)) == 1


def test_a_part_that_is_sent_again_changes_nothing() -> None:
    totals = StepTotals()
    totals.add("x", ADA, vector(1))
    totals.add("x", ADA, vector(7))
    totals.add("x", BOB, vector(2))
    totals.settle([ADA, BOB])
    totals.add("x", ADA, vector(7))

    assert totals.settle([ADA, BOB]) == []
    assert totals.of("x").tolist() == [3]


def test_parts_of_different_lengths_are_refused_without_effect() -> None:
    totals = StepTotals()
    totals.add("x", ADA, vector(1, 2))

    with pytest.raises(TotalMismatchError, match="worker 1 has 3 numbers, and worker 0 has 2"):
        totals.add("x", BOB, vector(1, 2, 3))

    assert totals.missing("x", [ADA, BOB]) == [BOB]


def test_a_step_has_so_many_bytes_and_the_next_begins_anew() -> None:
    totals = StepTotals(max_bytes=32)
    totals.add("x", ADA, vector(1, 2))
    totals.add("x", BOB, vector(1, 2))
    with pytest.raises(TotalsTooLargeError):
        totals.add("y", ADA, vector(1))

    totals.settle([ADA, BOB])  # a sum has less than its parts
    totals.add("y", ADA, vector(1, 2))
    totals.clear()
    totals.add("x", ADA, vector(1, 2, 3, 4))

    assert not totals.is_whole("x")
    assert totals.missing("x", [ADA, BOB]) == [BOB]
