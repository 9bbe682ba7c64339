"""When a job's progress is told."""

from typing import Any

from paramfleet_worker.core.showing.reports import LINE_EVERY_S, Course


def status(step: int, *, total_steps: int = 100) -> dict[str, Any]:
    facts = {"loss": 0.5, "staleness": 1, "done": False, "alive": True}
    worker = {"step": step, "total_steps": total_steps, **facts}
    return {"mode": "async", "samples_per_s": 20.0, "workers": [worker] if step else []}


def test_a_line_stays_each_ten_seconds_of_training() -> None:
    course = Course(now=0.0)
    assert course.see(status(0), now=100.0) is None

    lines = []
    for tick in range(45):
        told = course.see(status(tick + 1), now=200.0 + tick)
        assert told is not None
        lines.append(told.line)

    assert [at for at, line in enumerate(lines) if line] == [10, 20, 30, 40]
    assert LINE_EVERY_S == 10.0
    assert lines[10] == (
        "step 11 of 100, 1:29 left, loss 0.5000, 20 examples/s, staleness 1, async"
    )


def test_a_job_that_stands_still_says_so_once_and_goes_on_telling_when_it_moves() -> None:
    course = Course(now=0.0)

    lines = dict[int, str]()
    for tick in range(75):
        step = min(tick + 1, 6) if tick < 60 else 7
        told = course.see(status(step), now=200.0 + tick)
        assert told is not None
        if told.line:
            lines[tick] = told.line

    assert list(lines) == [10, 20, 60, 70]
    assert lines[10].startswith("step 6 of 100, ")
    assert lines[20] == "step 6 of 100: no step for 15 s"
    assert lines[60].startswith("step 7 of 100, ")


def test_the_line_that_is_drawn_anew_is_there_from_the_first_step_on() -> None:
    told = Course(now=0.0).see(status(3), now=1.0)

    assert told is not None
    assert told.line == ""
    assert told.share == 0.03
    assert told.parts == ("3/100", "loss 0.5000", "20 examples/s", "staleness 1", "async")


def test_the_result_is_how_long_it_took_and_where_it_ended() -> None:
    course = Course(now=10.0)
    assert course.result(now=15.0, finished=True) == "0:05"

    course.see(status(100), now=40.0)

    said = "0:32: step 100 of 100, loss 0.5000, 20 examples/s, staleness 1, async"
    assert course.result(now=42.0, finished=True) == said


def test_what_workers_published_last_is_where_the_job_ended() -> None:
    course = Course(now=0.0)
    course.see(status(3), now=1.0)

    last = {"total_steps": 100, "mode": "sync", "staleness": 0}
    course.end(
        {0: {**last, "step": 100, "loss": 0.2}, 1: {**last, "step": 99, "loss": 0.4}},
        finished=True,
    )
    course.end({}, finished=True)

    said = "0:02: step 100 of 100, loss 0.3000, 20 examples/s, sync"
    assert course.result(now=2.0, finished=True) == said


def test_of_a_job_that_was_stopped_it_says_whose_step_was_reported_last() -> None:
    course = Course(now=0.0)
    course.see(status(3), now=1.0)
    said = "0:02: last reported: step 3 of 100, loss 0.5000, 20 examples/s, staleness 1, async"
    assert course.result(now=2.0, finished=False) == said

    last = {"total_steps": 100, "mode": "sync", "staleness": 0}
    course.end(
        {0: {**last, "step": 60, "loss": 0.2}, 1: {**last, "step": 41, "loss": 0.4}},
        finished=False,
    )

    said = "0:02: last reported: step 41 of 100 (the slowest worker), loss 0.3000"
    assert course.result(now=2.0, finished=False).startswith(said)
