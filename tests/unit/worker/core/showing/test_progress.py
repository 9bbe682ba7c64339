"""How far a training is, and when it will end."""

from typing import Any

import pytest

from paramfleet_worker.core.showing.progress import Pace, duration, standing_of


def worker(step: int, **facts: Any) -> dict[str, Any]:
    usual = {"loss": 0.5, "staleness": 0, "done": False, "alive": True, "total_steps": None}
    return {"step": step, **usual, **facts}


def status(*workers: dict[str, Any], samples_per_s: float = 0.0) -> dict[str, Any]:
    return {"mode": "geo", "samples_per_s": samples_per_s, "workers": list(workers)}


def test_before_the_first_step_there_is_nothing_to_tell() -> None:
    assert standing_of(status()) is None
    assert standing_of(status(worker(0, loss=None, staleness=None))) is None


def test_the_job_is_where_its_slowest_worker_is() -> None:
    told = standing_of(
        status(
            worker(310, loss=0.1, total_steps=500, staleness=20),
            worker(290, loss=0.3, total_steps=500),
            worker(10, alive=False),
            samples_per_s=1234.4,
        )
    )

    assert told is not None
    assert (told.step, told.total_steps, told.share) == (290, 500, 0.58)
    assert told.loss == pytest.approx(0.2)
    assert told.parts(12.4, short=True) == [
        "290/500", "0:12 left", "loss 0.2000", "1,234 examples/s", "staleness 20", "geo",
    ]  # fmt: skip
    assert told.parts(12.4, short=False)[0] == "step 290 of 500"


def test_in_sync_there_is_no_staleness_to_tell() -> None:
    told = standing_of({**status(worker(3)), "mode": "sync"})

    assert told is not None
    assert told.parts(None, short=True) == ["step 3", "loss 0.5000", "sync"]


def test_what_nobody_has_said_is_left_out() -> None:
    told = standing_of(status(worker(1200, loss=None)))

    assert told is not None
    assert told.share is None
    assert told.parts(None, short=True) == ["step 1,200", "staleness 0", "geo"]


def test_a_job_whose_workers_are_done_keeps_its_last_speed_and_loss() -> None:
    before = standing_of(status(worker(490, total_steps=500), samples_per_s=99.0))

    told = standing_of(status(worker(500, loss=0.25, total_steps=500, done=True)), before)

    assert told is not None
    assert (told.step, told.loss, told.examples_per_s, told.share) == (500, 0.25, 99.0, 1.0)
    assert standing_of(status(), told) is told


def test_more_steps_than_were_said_are_a_whole_bar() -> None:
    told = standing_of(status(worker(7, total_steps=5)))

    assert told is not None
    assert told.share == 1.0


def test_the_end_follows_from_the_speed_of_the_last_half_minute() -> None:
    pace = Pace()
    for second in range(100):
        pace.add(min(10 * second, 500) + max(0, second - 50), now=float(second))

    assert pace.left_s(1000) == pytest.approx((1000 - 549) / 1.0)
    assert pace.left_s(None) is None
    assert pace.left_s(549) is None


def test_nobody_knows_the_end_of_what_stands_still_or_has_just_begun() -> None:
    pace = Pace()
    assert pace.left_s(10) is None
    pace.add(5, now=1.0)
    assert pace.left_s(10) is None
    pace.add(5, now=2.0)
    assert pace.left_s(10) is None
    pace.add(7, now=2.5)
    assert pace.left_s(10) == pytest.approx(2.25)


def test_a_worker_that_is_set_back_begins_a_new_measurement() -> None:
    pace = Pace()
    pace.add(100, now=0.0)
    pace.add(200, now=1.0)

    pace.add(50, now=2.0)
    assert pace.left_s(100) is None
    pace.add(60, now=3.0)

    assert pace.left_s(100) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.2, "0:00"), (12.4, "0:12"), (59.6, "1:00"), (843, "14:03"), (7205, "2:00:05")],
)
def test_a_duration_is_minutes_and_seconds_and_hours_if_there_are_some(
    seconds: float, shown: str
) -> None:
    assert duration(seconds) == shown
