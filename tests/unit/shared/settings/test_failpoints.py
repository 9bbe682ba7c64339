"""Failpoints: what the environment says is what happens at a point, and nothing else."""

import asyncio
import errno
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paramfleet_shared.settings.config import SettingError, read_environment
from paramfleet_shared.settings.failpoints import (
    DEFECTS,
    FAILPOINTS,
    ChaosNotAllowedError,
    arm,
    await_failpoint,
    disarm,
    failpoint,
    has_defect,
    read_failpoints,
)
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.testing.clock import FakeClock

CHECKOUT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    disarm()


def armed(text: str, *, role: str = "pserver", index: int = 0, life: int = 1) -> None:
    environment = {"PARAMFLEET_FAILPOINTS": text, "PARAMFLEET_LIFE": str(life)}
    arm(environment, role=role, chaos=True, index=index)


def reached(name: str, times: int) -> list[int]:
    """Return the times at which a point says that the disk is full."""
    full = []
    for time in range(1, times + 1):
        try:
            failpoint(name)
        except OSError as error:
            full.append((time, error.errno))
    return [time for time, number in full if number == errno.ENOSPC]


def test_a_point_that_is_not_armed_does_nothing() -> None:
    armed("")

    assert reached("before_write", 3) == []


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("before_write=full@2", [2]),
        ("before_write=full@2-4", [2, 3, 4]),
        ("before_write=full", [1, 2, 3, 4, 5]),
        ("before_write=full@1; before_write=full@3;", [1, 3]),
        ("before_write=delay:1@1;before_write=full@1", [1]),
        ("before_sync=full@1", []),
        ("pserver:before_write=full@1", [1]),
        ("pserver-0:before_write=full@1", [1]),
        ("pserver-1:before_write=full@1", []),
        ("before_write=full@1#2", []),
    ],
)
def test_it_acts_at_the_times_that_are_named(text: str, times: list[int]) -> None:
    armed(text)

    assert reached("before_write", 5) == times


async def test_a_delay_of_a_coroutine_holds_nothing_else_up() -> None:
    armed("before_append_ack=delay:300@2;before_write=full@2")
    clock = FakeClock()

    await await_failpoint("before_append_ack", clock)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(await_failpoint("before_append_ack", clock))
        await clock.advance(0.2)
        assert not waiting.done()
        await clock.advance(0.1)

    await await_failpoint("before_write", clock)
    with pytest.raises(OSError, match="No space left"):
        await await_failpoint("before_write", clock)


def test_it_acts_in_the_life_that_is_named() -> None:
    armed("before_write=full@1#2;before_write=full@2", life=2)

    assert reached("before_write", 5) == [1]


def test_a_process_has_the_points_of_its_role_alone() -> None:
    armed("before_write=full@1", role="worker")

    assert reached("before_write", 1) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense", "ROLE"),
        ("nowhere=kill@1", "must be a point: before_apply"),
        ("before_apply=explode", "must be an action: kill, stop, full or delay"),
        ("before_apply=full@1", "full where the disk is written: before_write"),
        ("before_apply=kill:5", "delay:MILLISECONDS"),
        ("before_apply=delay", "delay:MILLISECONDS"),
        ("before_apply=kill@0", "counted from 1"),
        ("before_apply=kill@5-4", "counted from 1"),
        ("before_apply=kill@1#0", "of a life from 1"),
        ("worker-0:before_apply=kill", "of a pserver, which has before_apply"),
        ("before_apply=kill@1;before_apply=kil@2", "'before_apply=kil@2'"),
    ],
)
def test_a_text_that_cannot_be_read_is_named(text: str, said: str) -> None:
    with pytest.raises(SettingError, match=re.escape(said)):
        list(read_failpoints(text))


@pytest.mark.parametrize("life", ["0", "one", "", "-1"])
def test_a_life_that_is_none_is_named(life: str) -> None:
    with pytest.raises(SettingError, match="PARAMFLEET_LIFE"):
        arm({"PARAMFLEET_LIFE": life}, role="pserver", chaos=True)


def test_a_bug_is_planted_by_its_name() -> None:
    arm({"PARAMFLEET_DEFECTS": "durable_before_log"}, role="pserver", chaos=True)

    assert has_defect("durable_before_log")
    assert not has_defect("windows_left_out")
    with pytest.raises(SettingError, match="PARAMFLEET_DEFECTS = 'sloth'"):
        arm({"PARAMFLEET_DEFECTS": "sloth"}, role="pserver", chaos=True)


@pytest.mark.parametrize("variable", ["FAILPOINTS", "DEFECTS", "FAULTS"])
def test_a_job_that_is_not_for_tests_refuses_planned_faults(variable: str) -> None:
    environment = {f"PARAMFLEET_{variable}": "before_write=full"}

    with pytest.raises(ChaosNotAllowedError, match=f"PARAMFLEET_{variable} .*--chaos"):
        arm(environment, role="pserver", chaos=False)

    assert reached("before_write", 1) == []
    arm({f"PARAMFLEET_{variable}": ""}, role="pserver", chaos=False)


@pytest.mark.slow
def test_a_point_kills_its_process_and_says_so() -> None:
    program = (
        "from paramfleet_shared.settings.config import read_environment\n"
        "from paramfleet_shared.settings.failpoints import arm, failpoint\n"
        "arm(read_environment(), role='worker', chaos=True, index=3)\n"
        "failpoint('before_send')\n"
        "print('once', flush=True)\n"
        "failpoint('before_send')\n"
        "print('twice', flush=True)\n"
    )
    environment = {**read_environment(), "PARAMFLEET_FAILPOINTS": "before_send=kill@2"}

    ended = subprocess.run(
        tied([sys.executable, "-c", program]),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == "once\n"
    assert re.search(
        r"^failpoint: worker-3 life 1 before_send kill \d+\.\d+$", ended.stderr, re.MULTILINE
    )


def source() -> dict[str, list[str]]:
    """Return by name in which files points and bugs are."""
    found: dict[str, list[str]] = {}
    for folder in ("client", "shared", "services"):
        for path in (CHECKOUT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for name in re.findall(r'\b(?:(?:await_)?failpoint|has_defect)\(\s*"(\w+)"', text):
                found.setdefault(name, []).append(str(path.relative_to(CHECKOUT)))
    return found


def test_each_point_is_in_the_code_of_its_process() -> None:
    folders = {"worker": "client/", "pserver": "services/pserver/"}
    folders["coordinator"] = "services/coordinator/"

    there = source()

    assert set(there) == FAILPOINTS.keys() | DEFECTS.keys()
    for name, about in FAILPOINTS.items():
        assert all(path.startswith(folders[about.role]) for path in there[name]), name


def test_each_point_is_on_the_page() -> None:
    page = (CHECKOUT / "docs" / "operations.md").read_text(encoding="utf-8")

    for name, about in FAILPOINTS.items():
        assert f"| `{name}` | {about.role} | {about.sentence} |" in page
