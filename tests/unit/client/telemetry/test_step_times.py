"""Where a worker's time goes, told from the switches between phases."""

import pytest

from paramfleet.telemetry.step_times import StepTimes


class Hands:
    """A time that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hands() -> Hands:
    return Hands()


def step(times: StepTimes, hands: Hands, *, data: float = 0.5, examples: int = 32) -> None:
    hands.now += data
    times.forward()
    hands.now += 0.125
    with times.during("pull"):
        hands.now += 0.25
    hands.now += 0.125
    with times.during("push"):
        hands.now += 0.0625
        times.switch("barrier")  # as the communicator's loop does
        hands.now += 1.0
    times.end_step(examples=examples)


def test_each_moment_counts_for_the_phase_it_is_in(hands: Hands) -> None:
    times = StepTimes(hands)
    hands.now += 77.0
    times.begin()

    for _ in range(2):
        step(times, hands)

    facts = times.facts()
    assert facts["seconds"] == {
        "data": 1.0, "pull": 0.5, "compute": 0.5, "push": 0.125, "barrier": 2.0,
        "wait": 0.0, "pause": 0.0,
    }  # fmt: skip
    assert (facts["steps"], facts["examples"], facts["phase"]) == (2, 64, "data")
    assert facts["step_ms"] == {"p50": 2062.5, "p90": 2062.5, "p99": 2062.5}


def test_a_phase_that_has_not_ended_counts_already(hands: Hands) -> None:
    times = StepTimes(hands)
    times.begin()

    hands.now += 9.0

    assert times.facts()["seconds"]["data"] == 9.0
    assert times.facts()["phase"] == "data"


def test_a_lookup_without_a_watched_forward_begins_the_computing(hands: Hands) -> None:
    times = StepTimes(hands)
    times.begin()
    hands.now += 1.0
    with times.during("pull"):
        hands.now += 2.0
    hands.now += 4.0

    seconds = times.facts()["seconds"]

    assert (seconds["data"], seconds["pull"], seconds["compute"]) == (1.0, 2.0, 4.0)


def test_a_barrier_between_steps_leaves_the_phase_as_it_was(hands: Hands) -> None:
    times = StepTimes(hands)
    times.begin()
    with times.during("barrier"):
        hands.now += 2.0
    hands.now += 1.0

    seconds = times.facts()["seconds"]

    assert (seconds["barrier"], seconds["data"]) == (2.0, 1.0)


def test_a_pause_makes_no_step_long(hands: Hands) -> None:
    times = StepTimes(hands)
    times.begin()
    with times.during("pause"):
        hands.now += 60.0
    step(times, hands)

    assert times.facts()["step_ms"]["p99"] == 2062.5
    assert times.facts()["seconds"]["pause"] == 60.0


def test_percentiles_are_of_the_last_half_minute(hands: Hands) -> None:
    times = StepTimes(hands)
    times.begin()
    step(times, hands, data=20.0)
    hands.now += 31.0
    step(times, hands, data=0.0)

    assert times.facts()["step_ms"]["p50"] == pytest.approx(32562.5)
    hands.now += 31.0
    assert times.facts()["step_ms"] == {}


def test_nothing_counts_before_the_training_or_after_it(hands: Hands) -> None:
    times = StepTimes(hands)
    hands.now += 5.0
    times.begin()
    times.end()
    hands.now += 5.0
    with times.during("pull"):  # an evaluation
        hands.now += 1.0

    facts = times.facts()

    assert facts["phase"] == "idle"
    assert facts["seconds"]["data"] == 0.0
