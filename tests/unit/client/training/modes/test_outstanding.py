"""As many steps wait for the servers as a round trip needs, and no more."""

import pytest

from paramfleet.training.modes.asynchronous.outstanding import OutstandingSteps


def after(*, round_trips_s: list[float], steps_s: list[float], most: int = 16) -> int:
    outstanding = OutstandingSteps(most)
    for seconds in round_trips_s:
        outstanding.note_answer(seconds)
    for seconds in steps_s:
        outstanding.note_step(seconds)
    return outstanding.limit


def test_one_step_waits_before_anything_is_known() -> None:
    assert OutstandingSteps(16).limit == 1
    assert after(round_trips_s=[0.5], steps_s=[]) == 1
    assert after(round_trips_s=[], steps_s=[0.5]) == 1
    assert after(round_trips_s=[0.0], steps_s=[0.0]) == 1


@pytest.mark.parametrize(
    ("round_trip_s", "step_s", "limit"),
    [
        (0.0005, 0.002, 1),
        (0.003, 0.002, 2),
        (0.02, 0.002, 11),
        (1.0, 0.002, 16),
        (0.1, 0.0, 16),
    ],
)
def test_what_a_round_trip_needs_may_wait(
    round_trip_s: float, step_s: float, limit: int
) -> None:
    assert after(round_trips_s=[round_trip_s], steps_s=[step_s]) == limit


def test_an_answer_that_waited_in_a_queue_counts_for_nothing() -> None:
    assert after(round_trips_s=[0.5, 0.001, 0.5], steps_s=[0.002]) == 1


def test_a_longer_way_is_noticed_after_two_rounds_of_answers() -> None:
    outstanding = OutstandingSteps(16)
    outstanding.note_step(0.002)
    outstanding.note_answer(0.001)
    for _ in range(63 + 64):
        outstanding.note_answer(0.02)
    assert outstanding.limit == 1

    outstanding.note_answer(0.02)

    assert outstanding.limit == 11


def test_one_slow_step_changes_little() -> None:
    assert after(round_trips_s=[0.02], steps_s=[0.002] * 50 + [0.01]) == 9
    assert after(round_trips_s=[0.02], steps_s=[0.002] * 50 + [10.0]) == 9
    assert after(round_trips_s=[0.02], steps_s=[10.0] + [0.002] * 20) == 10
    assert after(round_trips_s=[0.02], steps_s=[0.002] * 50 + [0.01] * 50) == 3
