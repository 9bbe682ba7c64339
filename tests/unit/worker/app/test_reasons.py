"""Why a process failed, and what may be done about it."""

from collections.abc import Iterator
from typing import Any

import pytest

from paramfleet_shared.system.open_files import num_open_files
from paramfleet_worker.app.launch.planning import LaunchPlan, plan_launch
from paramfleet_worker.app.launch.reporting.advice import Advice
from paramfleet_worker.app.launch.reporting.reasons import found_of
from paramfleet_worker.config import LaunchSettings
from paramfleet_worker.core.causes import Cause
from paramfleet_worker.core.events import ProcessName
from paramfleet_worker.process.children.ending import Ending
from paramfleet_worker.process.ports import PortReservations

LOG = [
    "Traceback (most recent call last):",
    '  File "/home/ada/train.py", line 3, in <module>',
    "    1 / 0",
    "ZeroDivisionError: division by zero",
]

OF_LOG = Cause(
    "ZeroDivisionError: division by zero", "/home/ada/train.py:3, in <module>", "1 / 0"
)

ERROR = Ending(
    kind="error", text="ValueError: no\nrows", code=1, frames=(("/a.py", 7, "f", "g()"),)
)
EXIT = Ending(kind="exit", text="no data", code=1, frames=(("/a.py", 7, "f", "g()"),))


@pytest.mark.parametrize(
    ("how", "ending", "found"),
    [
        ("exited with code 1", None, OF_LOG),
        ("exited with code 3", None, Cause()),
        ("exited with code 1", Ending(), Cause()),
        ("exited with code 1", ERROR, Cause("ValueError: no", "/a.py:7, in f", "g()")),
        ("exited with code 3", ERROR, Cause("ValueError: no", "/a.py:7, in f", "g()")),
        ("was killed by SIGKILL", ERROR, Cause()),
        ("exited with code 1", EXIT, Cause("no data", "/a.py:7, in f", "g()")),
        ("exited with code 3", EXIT, Cause()),
        ("(its script ended)", EXIT, Cause("no data", "/a.py:7, in f", "g()")),
        ("(its script ended)", Ending(), Cause()),
    ],
)
def test_the_output_is_believed_only_of_who_writes_nothing_down(
    how: str, ending: Ending | None, found: Cause
) -> None:
    assert found_of(how, ending, lambda _: LOG) == found


@pytest.fixture
def reservations() -> Iterator[PortReservations]:
    with PortReservations() as reservations:
        yield reservations


def plan(reservations: PortReservations, **settings: Any) -> LaunchPlan:
    return plan_launch(
        LaunchSettings(job="a", **settings),
        script=("x.py",),
        pod_ip="",
        reservations=reservations,
    )


KILLED = "was killed by SIGKILL"


@pytest.mark.parametrize(
    ("role", "settings", "survives"),
    [
        ("worker", {}, False),
        ("pserver", {}, True),
        ("pserver", {"data_dir": "/x"}, False),
        ("pserver", {"replicas": 1, "server_num": 2}, False),
    ],
)
def test_a_lost_pserver_needs_its_data_elsewhere(
    reservations: PortReservations, role: str, settings: dict[str, Any], survives: bool
) -> None:
    advice = Advice(plan(reservations, **settings))

    said = advice.about(ProcessName(role, 0), how=KILLED, reason="", local=True)

    assert "memory was exhausted" in said
    assert ("--data_dir" in said) == survives
    assert "\n" not in said


@pytest.mark.parametrize(
    ("how", "reason", "begin"),
    [
        ("(was killed by SIGKILL)", KILLED, "SIGKILL often means that memory was exhausted: "),
        (
            "exited with code 1",
            "OSError: [Errno 24] Too many open files: 'a'",
            "the limit of open ",
        ),
        ("exited with code 1", "ValueError: no rows", ""),
        ("was killed by SIGSEGV", "", ""),
    ],
)
def test_what_is_known_of_a_failure_has_its_advice(
    reservations: PortReservations, how: str, reason: str, begin: str
) -> None:
    advice = Advice(plan(reservations))

    said = advice.about(ProcessName("worker", 0), how=how, reason=reason, local=False)

    assert said.startswith(begin)
    assert bool(said) == bool(begin)
    if "open" in begin:
        assert said.startswith(f"the limit of open files is {num_open_files()}: ")
