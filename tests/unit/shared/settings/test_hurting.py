"""What is ordered happens in the process that it is for, once."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paramfleet_shared.net.rpc.breaking.chaos_faults import ChaosFaults, chaos_faults
from paramfleet_shared.net.rpc.faults import NO_FAULTS, Verdict
from paramfleet_shared.settings import hurting
from paramfleet_shared.settings.config import JobSettings, read_environment
from paramfleet_shared.settings.failpoints import disarm, failpoint
from paramfleet_shared.settings.hurts import Hurt
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.testing.clock import FakeClock

CHECKOUT = Path(__file__).parents[4]

ALLOWED = JobSettings(chaos=True)


@pytest.fixture(autouse=True)
def unhurt() -> Iterator[None]:
    yield
    disarm()
    hurting.forbid()


@pytest.fixture
def clock() -> FakeClock:
    clock = FakeClock()
    hurting.allow("worker", 1, 3, clock)
    return clock


def drop(number: int = 1, **more: Any) -> Hurt:
    whole = Hurt(number=number, action="drop", role="worker", index=1, incarnation=3, for_s=5.0)
    return replace(whole, **more)


def test_a_process_without_leave_is_not_hurt() -> None:
    hurting.take([drop()])

    assert hurting.broken("registry", 0.0) is None
    assert chaos_faults(JobSettings(), FakeClock())("pserver:0") is NO_FAULTS


@pytest.mark.parametrize(
    "other", [{"role": "pserver"}, {"index": 0}, {"incarnation": 2}, {"incarnation": 4}]
)
def test_what_is_for_another_process_is_left_alone(
    clock: FakeClock, other: dict[str, Any]
) -> None:
    hurting.take([drop(**other)])

    assert hurting.broken("registry", clock.monotonic()) is None


async def test_an_order_is_carried_out_once(clock: FakeClock) -> None:
    hurting.take([drop()])
    await clock.advance(6.0)
    hurting.take([drop(), drop(2, action="duplicate")])

    broken = hurting.broken("registry", clock.monotonic())

    assert broken is not None
    assert (broken.drop, broken.duplicate) == (0.0, 1.0)


def test_a_process_is_hurt_in_each_of_its_places() -> None:
    clock = FakeClock()
    hurting.allow("process", 0, 1, clock)
    hurting.allow("pserver", 0, 1, clock)
    hurting.allow("pserver", 1, 2, clock)  # a group that came last
    first = Hurt(number=1, action="drop", role="pserver", index=0, incarnation=1, for_s=5.0)
    hurting.take([replace(first, number=2, action="duplicate", index=1, incarnation=2)])
    hurting.take([first])

    broken = hurting.broken("registry", clock.monotonic())

    assert broken is not None
    assert (broken.drop, broken.duplicate) == (1.0, 1.0)


def test_what_is_for_a_place_that_was_left_is_left_alone() -> None:
    clock = FakeClock()
    hurting.allow("pserver", 0, 1, clock)
    hurting.allow("pserver", 1, 1, clock)
    hurting.leave("pserver", 1, 1)
    hurting.leave("pserver", 1, 1)
    order = Hurt(number=1, action="drop", role="pserver", index=1, incarnation=1, for_s=5.0)
    hurting.take([order])
    assert hurting.broken("registry", clock.monotonic()) is None

    hurting.take([replace(order, number=2, index=0)])
    assert hurting.broken("registry", clock.monotonic()) is not None


async def test_it_waits_for_its_point(clock: FakeClock) -> None:
    hurting.take([drop(point="after_answer", nth=2)])
    failpoint("after_answer")
    assert hurting.broken("registry", clock.monotonic()) is None

    failpoint("after_answer")
    assert hurting.broken("registry", clock.monotonic()) is not None

    await clock.advance(6.0)
    failpoint("after_answer")
    assert hurting.broken("registry", clock.monotonic()) is None


def test_a_disk_is_full_from_a_point_on_for_a_while() -> None:
    hurting.allow("pserver", 0, 1, FakeClock())
    full = Hurt(
        number=1, action="full", role="pserver", incarnation=1,
        point="before_write", nth=2, for_s=3600.0,
    )  # fmt: skip
    hurting.take([full, replace(full, number=2, point="before_sync", nth=1, for_s=0.0)])

    failpoint("before_write")
    failpoint("before_sync")  # its time is over
    with pytest.raises(OSError, match="No space") as refused:
        failpoint("before_write")

    assert refused.value.errno == errno.ENOSPC


async def test_calls_are_lost_doubled_and_late() -> None:
    clock = SystemClock()
    hurting.allow("worker", 1, 3, clock)
    faults = [chaos_faults(ALLOWED, clock)(f"pserver:{server}") for server in range(5)]
    assert isinstance(faults[0], ChaosFaults)
    assert faults[0].on_request("push") is Verdict.DELIVER
    assert await faults[0].on_reply("push") is Verdict.DELIVER
    assert await faults[0].on_hold("push") is Verdict.DELIVER

    actions = ("drop", "duplicate", "reorder", "delay", "partition")
    for server, action in enumerate(actions):
        lasts_s = 0.2 if action == "partition" else 60.0
        hurting.take([drop(1 + server, action=action, peer=f"pserver:{server}", for_s=lasts_s)])

    assert faults[0].on_request("push") is Verdict.DROP
    assert await faults[0].on_reply("push") is Verdict.DROP
    assert faults[1].on_request("push") is Verdict.DUPLICATE
    assert faults[2].on_request("push") is Verdict.HOLD
    assert await faults[2].on_hold("push") is Verdict.DELIVER
    assert await faults[3].on_reply("push") is Verdict.DELIVER
    assert faults[4].on_request("push") is Verdict.HOLD
    assert await faults[4].on_hold("push") is Verdict.DROP  # when the partition is over
    assert await faults[4].on_reply("push") is Verdict.DELIVER


def test_the_time_of_day_jumps(tmp_path: Path) -> None:
    script = """
import time
from paramfleet_shared.settings import hurting
from paramfleet_shared.settings.hurts import Hurt
from paramfleet_shared.system.clock import SystemClock
hurting.allow("pserver", 0, 1, SystemClock())
before, steady = time.time(), time.monotonic()
hurting.take([Hurt(number=1, action="clock", role="pserver", incarnation=1, by=-500.0)])
print(-501 < time.time() - before < -499, 0 <= time.monotonic() - steady < 100)
"""
    assert output_of(script) == "True True"


@pytest.mark.parametrize(("action", "code"), [("kill", -9), ("stop", 0), ("slow", 0)])
def test_a_process_is_killed_stopped_and_slowed(action: str, code: int) -> None:
    script = f"""
import time
from paramfleet_shared.settings import hurting
from paramfleet_shared.settings.hurts import Hurt
from paramfleet_shared.system.clock import SystemClock
hurting.allow("pserver", 0, 1, SystemClock())
began, used = time.monotonic(), time.process_time()
hurt = Hurt(number=1, action="{action}", role="pserver", incarnation=1, by=5.0, for_s=0.5)
hurting.take([hurt])
while time.monotonic() - began < 0.5:
    pass
print(time.process_time() - used < 0.4)
"""
    ended = subprocess.run(
        tied([sys.executable, "-c", script]),
        cwd=CHECKOUT, env=read_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert ended.returncode == code, ended.stderr
    assert f"failpoint: pserver-0 chaos now {action}" in ended.stderr
    assert code or ended.stdout.strip() == "True"


def test_a_process_that_has_ended_can_not_be_hurt() -> None:
    other = subprocess.Popen(tied([sys.executable, "-c", ""]))
    other.wait()

    for action in ("kill", "stop", "slow"):
        with pytest.raises(OSError, match=r"No such process|go on later"):
            hurting.hurt_other(Hurt(action=action, role="redis", by=5.0), other.pid)


@pytest.mark.parametrize("pid", [1, 0, -1])
@pytest.mark.parametrize("action", ["kill", "stop", "slow"])
def test_neither_groups_of_processes_nor_the_first_are_hurt(
    action: str, pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        pytest.fail("a signal would have been sent")

    monkeypatch.setattr(os, "kill", never)
    monkeypatch.setattr(subprocess, "Popen", never)

    with pytest.raises(ValueError, match="must not get a fault"):
        hurting.hurt_other(Hurt(action=action, role="redis", by=5.0), pid)


def test_another_process_is_stopped_and_goes_on() -> None:
    script = "import sys; print('ready', flush=True); sys.stdin.read(); print('went on')"
    other = subprocess.Popen(
        tied([sys.executable, "-c", script]), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    assert other.stdout.readline() == b"ready\n"

    hurting.hurt_other(Hurt(action="stop", role="redis", for_s=0.2), other.pid)

    assert other.communicate(timeout=60)[0] == b"went on\n"


def output_of(script: str) -> str:
    ended = subprocess.run(
        tied([sys.executable, "-c", script]),
        cwd=CHECKOUT, env=read_environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return ended.stdout.strip()
