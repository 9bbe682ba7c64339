"""Logs in one line, metrics of one process."""

import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paramfleet_shared.telemetry.logs_and_metrics import (
    JsonFormatter,
    MetricRegistry,
    add_pairs,
    event_formatter,
    setup_logging,
)

LOGGERS = ("paramfleet", "paramfleet_shared", "paramfleet_worker")


@pytest.fixture(autouse=True)
def loggers_as_before() -> Iterator[None]:
    before = [
        (n, logging.getLogger(n).handlers[:], logging.getLogger(n).level) for n in LOGGERS
    ]
    yield
    for name, handlers, level in before:
        logger = logging.getLogger(name)
        logger.handlers[:], logger.propagate = handlers, True
        logger.setLevel(level)


def line_of(**extra: object) -> str:
    record = logging.makeLogRecord({"levelname": "INFO", "msg": "step.done", **extra})
    add_pairs(record)
    return event_formatter("worker/2").format(record)


def test_a_record_is_time_level_who_event_and_fields() -> None:
    line = line_of(step=3, file="a b", note="")

    assert re.fullmatch(
        r"\d\d:\d\d:\d\d\.\d{3} INFO worker/2 step\.done step=3 file='a b' note=''", line
    )


def test_what_is_said_of_several_names_has_no_escaped_quotes() -> None:
    line = line_of(not_saved={"states/bad": "['n'] is of type object", "b": 2}, none={})

    assert line.endswith(""" not_saved="{states/bad: ['n'] is of type object, b: 2}" none={}""")


def test_as_json_a_record_is_one_object_on_one_line() -> None:
    record = logging.makeLogRecord({
        "levelname": "WARNING", "msg": "worker.%s", "args": ("lost",), "created": 1.25,
        "index": 3, "loss": float("nan"), "path": Path("a"), "text": "one\ntwo",
    })  # fmt: skip
    try:
        raise ValueError("odd")  # noqa: TRY301 (the record needs a real traceback)
    except ValueError:
        record.exc_info = sys.exc_info()

    line = JsonFormatter("pserver", 1).format(record)

    said = json.loads(line)
    assert "\n" not in line
    assert said.pop("exception").endswith("ValueError: odd")
    assert said == {
        "time": "1970-01-01T00:00:01.250Z",
        "level": "WARNING",
        "role": "pserver",
        "index": 1,
        "event": "worker.lost",
        "fields": {"index": 3, "loss": "nan", "path": "a", "text": "one\ntwo"},
    }


def test_what_a_library_marks_every_record_with_is_no_field() -> None:
    assert line_of(step=3, _ray_timestamp_ns=1).endswith("step.done step=3")


def test_a_field_with_line_breaks_stays_on_its_line() -> None:
    assert "\n" not in line_of(text="one\ntwo")


def test_a_traceback_follows_its_line() -> None:
    try:
        raise ValueError("odd")  # noqa: TRY301 (the record needs a real traceback)
    except ValueError:
        line = line_of(exc_info=sys.exc_info())

    assert line.splitlines()[-1] == "ValueError: odd"


def test_setup_sends_the_projects_log_to_standard_error_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    setup_logging("worker")
    setup_logging("worker", 2, "WARNING")

    logging.getLogger("paramfleet_shared.discovery").info("unheard")
    logging.getLogger("paramfleet_worker.app").warning("heard", extra={"n": 1})

    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith("WARNING worker/2 heard n=1")


def test_metrics_of_two_processes_in_one_do_not_mix() -> None:
    ours, theirs = MetricRegistry(), MetricRegistry()
    ours.counter("pushes", "Pushes.", ["table"]).labels("users").inc(2)
    theirs.counter("pushes", "Pushes.", ["table"])
    ours.gauge("rows", "Rows.").set(5)
    ours.histogram("wait_s", "Waits.", buckets=[0.1, 1.0]).observe(0.5)

    text = ours.render().decode()

    assert 'paramfleet_pushes_total{table="users"} 2.0' in text
    assert "paramfleet_rows 5.0" in text
    assert 'paramfleet_wait_s_bucket{le="1.0"} 1.0' in text
    assert "users" not in theirs.render().decode()
