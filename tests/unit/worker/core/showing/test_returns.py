"""When a launch tells that a pserver is back."""

import json
from collections.abc import Callable

import pytest

from paramfleet_worker.core.events import ProcessName
from paramfleet_worker.core.showing.returns import Returns

ONE = ProcessName("pserver", 1)


def text(event: str, **fields: object) -> bytes:
    said = "".join(f" {name}={value}" for name, value in fields.items())
    return f"10:00:00.000 WARNING pserver/1 {event}{said}".encode()


def as_json(event: str, **fields: object) -> bytes:
    who = {
        "time": "2026-05-01T12:00:00.250Z",
        "level": "WARNING",
        "role": "pserver",
        "index": 1,
    }
    return json.dumps({**who, "event": event, "fields": fields}).encode()


@pytest.mark.parametrize("line", [text, as_json])
def test_one_that_died_is_back_when_its_tables_are(line: Callable[..., bytes]) -> None:
    returns = Returns(has_disk=True, is_planned=False)
    returns.note_death(ONE, 10.0)
    returns.note_death(ONE, 10.5)

    recovered = line("pserver.recovered", seconds=0.5, rows=1000, commands=12, fault=None)

    assert returns.hear(ONE, line("pserver.started", pid=7), 11.0) == ""
    assert returns.hear(ONE, recovered, 12.3) == (
        "pserver 1 is back after 2.3 s: restored 1,000 rows, 12 commands of the log"
    )
    assert returns.hear(ONE, line("pserver.serving", cpu_s=1), 12.4) == ""


def test_one_that_another_launch_has_started_before_goes_on() -> None:
    returns = Returns(has_disk=True, is_planned=False)

    said = returns.hear(ONE, text("pserver.recovered", seconds=0.5, rows=0, commands=0), 1.0)

    assert said == "pserver 1 goes on: restored the snapshot"


def test_a_process_of_planned_groups_is_back_before_its_groups() -> None:
    returns = Returns(has_disk=True, is_planned=True)
    started, group = text("pserver.started", pid=7), {"group": 3, "seconds": 0.52}
    assert returns.hear(ONE, started, 0.5) == "", "nobody has missed it"
    returns.note_death(ONE, 1.0)

    assert returns.hear(ONE, started, 3.0) == "pserver 1 is back after 2.0 s"
    assert returns.hear(ONE, text("pserver.recovered", **group, rows=8, commands=0), 4.0) == (
        "pserver 1 has restored group 3 in 0.5 s: 8 rows"
    )


@pytest.mark.parametrize(
    "line",
    [
        b"pserver.recovered rows=1",
        text("pserver.recovered", seconds="x"),
        text("pserver.recovered", rows="1.5"),
        as_json("pserver.recovered", rows=None),
    ],
)
def test_what_is_no_line_of_a_pserver_is_told_of_by_nobody(line: bytes) -> None:
    returns = Returns(has_disk=True, is_planned=False)
    returns.note_death(ONE, 0.0)

    assert returns.hear(ONE, line, 1.0) == ""
