"""Who holds the others up, told from recorded seconds."""

from dataclasses import replace
from typing import Any

import pytest

from paramfleet_coordinator.core.readings import PHASES, Calls, History, Window
from paramfleet_coordinator.core.stragglers import Watch, find_straggler, lag_reason


def window(
    *,
    steps: int = 100,
    wall_s: float = 3.0,
    phase: str = "data",
    calls: Any = None,
    **ms: Any,
) -> Window:
    """Return what a worker did whose phases took so many milliseconds in each step."""
    usual = {"data": 2.0, "pull": 4.0, "compute": 6.0, "push": 3.0}
    per_step = {**usual, **ms}
    seconds = {name: per_step.get(name, 0.0) * steps / 1e3 for name in PHASES}
    made = calls or {"push": Calls(count=steps, seconds=0.004 * steps, num_bytes=1e4 * steps)}
    return Window(
        wall_s=wall_s,
        steps=steps,
        examples=32 * steps,
        seconds=seconds,
        phase=phase,
        calls=made,
    )


def test_nobody_is_named_among_equals() -> None:
    assert find_straggler({rank: window() for rank in range(4)}) is None


def test_a_lone_worker_has_nobody_to_be_slower_than() -> None:
    assert find_straggler({0: window(data=900.0)}) is None


@pytest.mark.parametrize(
    ("slow", "cause", "words"),
    [
        ({"data": 50.0}, "data", "its data is slow"),
        ({"compute": 50.0}, "compute", "its computing is slow"),
        ({"pull": 40.0}, "network", "its network is slow: pulling and pushing takes 43 ms"),
        ({"push": 40.0, "data": 5.0}, "network", "its network is slow"),
    ],
)
def test_the_part_that_exceeds_the_peers_the_most_is_the_cause(
    slow: dict[str, Any], cause: str, words: str
) -> None:
    found = find_straggler({0: window(), 1: window(**slow), 2: window()}, server_s=0.0021)

    assert found is not None
    assert (found.rank, found.cause) == (1, cause)
    assert words in found.words
    assert "worker 1" in found.words
    assert ("the servers themselves need 2.1 ms" in found.words) == (cause == "network")


def test_in_sync_waiting_for_the_slow_one_blames_nobody_else() -> None:
    quick = window(steps=50, barrier=40.0)
    slow = window(steps=50, data=44.0, barrier=0.1)

    found = find_straggler({0: quick, 1: slow})

    assert found is not None
    assert found.rank == 1
    assert lag_reason(quick, found, 0).startswith("waits for other workers 67% of its time")
    assert lag_reason(quick, found, 0).endswith("worker 1")
    assert lag_reason(slow, found, 1) == found.words


def test_a_worker_that_is_stuck_is_named_by_where() -> None:
    stuck = window(steps=0, wall_s=3.0)
    seconds = {**stuck.seconds, "data": 3.0}
    stuck = Window(wall_s=3.0, steps=0, examples=0, seconds=seconds, phase="data")

    found = find_straggler({0: window(), 1: stuck})

    assert found is not None
    assert (found.rank, found.cause) == (1, "data")


def test_more_bytes_are_no_slow_network() -> None:
    calls = {"push": Calls(count=100, seconds=4.0, num_bytes=1e7)}

    found = find_straggler({0: window(), 1: window(push=30.0, calls=calls), 2: window()})

    assert found is not None
    assert found.cause == "volume"
    assert "10.0 times the bytes" in found.words


def test_answers_that_nobody_waits_for_show_a_slow_network_too() -> None:
    late = {"exchange": Calls(count=10, seconds=4.0, num_bytes=1e5)}
    prompt = {"exchange": Calls(count=10, seconds=0.05, num_bytes=1e5)}

    found = find_straggler(
        {0: window(calls=prompt), 1: window(calls=prompt), 2: window(calls=late)},
        server_s=0.004,
    )

    assert found is not None
    assert (found.rank, found.cause) == (2, "network")
    assert "an answer takes 400 ms where it takes the others 5 ms" in found.words
    assert "the servers themselves need 4 ms" in found.words


def test_small_differences_name_nobody() -> None:
    short: dict[str, Any] = {"data": 0.1, "pull": 0.1, "compute": 0.2, "push": 0.1}

    assert find_straggler({0: window(**short), 1: window(**{**short, "data": 1.0})}) is None
    assert find_straggler({0: window(), 1: window(compute=12.0)}) is None


def test_who_pauses_or_has_ended_is_not_judged() -> None:
    paused = window(data=90.0, pause=30.0)

    assert find_straggler({0: window(), 1: paused}) is None
    assert find_straggler({0: window(), 1: window(data=90.0, phase="idle")}) is None
    assert find_straggler({0: window(), 1: window(data=90.0, wall_s=1.0)}) is None
    assert lag_reason(window(steps=3, wall_s=3.0, pause=900.0), None, 1) == (
        "paused by an operator"
    )
    assert lag_reason(None, None, 1) == ""
    assert lag_reason(window(), None, 1) == ""


def test_who_waits_for_data_to_come_is_told_so_and_not_judged() -> None:
    waiting = window(steps=0, wall_s=3.0, phase="wait")
    waiting = replace(waiting, seconds={**waiting.seconds, "wait": 2.8})
    file = "/data/20260102/0010/done"

    assert lag_reason(waiting, None, 1, waits_for=file) == f"waits for data: {file}"
    assert lag_reason(waiting, None, 1) == "waits for data"
    assert lag_reason(window(), None, 1, waits_for=file) == "", "it is there now"
    assert find_straggler({0: window(data=90.0), 1: waiting}) is None


def test_one_hiccup_names_nobody_and_two_in_a_row_do() -> None:
    slow = find_straggler({0: window(), 1: window(data=50.0)})
    watch = Watch()

    assert not watch.look(slow)
    assert watch.named is None
    assert watch.look(slow)
    assert watch.named is slow
    assert not watch.look(None)
    assert watch.named is slow
    assert watch.look(None)
    assert watch.named is None


def facts(at: float, steps: int, *, data: float, calls: int = 0) -> dict[str, Any]:
    seconds = {**dict.fromkeys(PHASES, 0.0), "data": data}
    times = {
        "at": at,
        "steps": steps,
        "examples": 8 * steps,
        "phase": "data",
        "seconds": seconds,
    }
    return {
        "step": steps, "loss": 0.5, "staleness": 0, "times": times,
        "calls": {"push": [calls, 0.01 * calls, 100 * calls]},
    }  # fmt: skip


def test_readings_become_rates_of_the_last_seconds() -> None:
    history = History()

    assert history.take(facts(10.0, 0, data=0.0), now=1.0) is None
    assert history.take(facts(10.0, 0, data=0.0), now=1.2) is None
    sample = history.take(facts(12.0, 100, data=1.0, calls=50), now=3.0)

    assert sample is not None
    assert (sample["steps_per_s"], sample["samples_per_s"]) == (50.0, 400.0)
    assert sample["split"]["data"] == 0.5
    assert (sample["call_ms"], sample["calls_per_step"]) == (10.0, 0.5)
    for second in range(13, 30):
        history.take(facts(float(second), 100, data=1.0, calls=50), now=second - 9.0)
    recent = history.window()
    assert recent is not None
    assert (recent.wall_s, recent.steps) == (3.0, 0)


def test_samples_are_kept_for_a_quarter_of_an_hour() -> None:
    history = History()
    for second in range(2000):
        history.take(facts(float(second), second, data=0.0), now=float(second))

    assert len(history.samples) == 901
    assert history.samples[-1]["at_s"] == 1999.0


def test_a_new_process_in_the_same_place_starts_anew() -> None:
    history = History()
    history.take(facts(500.0, 900, data=3.0), now=1.0)
    history.take(facts(501.0, 901, data=3.0), now=2.0)

    assert history.take(facts(3.0, 1, data=0.0), now=3.0) is None
    sample = history.take(facts(4.0, 3, data=0.5), now=4.0)

    assert sample is not None
    assert sample["steps_per_s"] == 2.0
    assert history.take({}, now=5.0) is None
