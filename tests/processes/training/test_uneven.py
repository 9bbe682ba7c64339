"""Workers and roles that don't come, or go, together."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_long.py"


@pytest.mark.parametrize(
    "mode", [("sync",), ("async",), ("async", "--max_staleness", "1"), ("geo",)], ids="-".join
)
def test_who_stops_early_waits_while_the_other_trains_on(
    jobs: Any, mode: tuple[str, ...], tmp_path: Path
) -> None:
    enough = tmp_path / "enough"
    running = jobs.start(SCRIPT, "--mode", *mode, "--steps_of_0", "20", "--until", str(enough))
    running.wait_for("worker0", "stopping after 20")
    running.wait_for("worker1", "trained 60")
    assert "left with" not in running.log("worker0"), "it waits for the other"

    enough.touch()
    ended = running.end()

    assert set(ended.codes.values()) == {0}, ended.story()
    lines = {name: ended.logs[name].splitlines()[-1] for name in ("worker0", "worker1")}
    assert lines["worker0"].startswith("left with ")
    first, second = (json.loads(line.removeprefix("left with ")) for line in lines.values())
    assert first == pytest.approx(second, abs=1e-5)


def test_who_dies_while_another_waits_for_it_at_the_end_is_named_in_every_mode(
    jobs: Any,
) -> None:
    args = ("--steps_of_0", "20")
    running = {
        mode: jobs.start(SCRIPT, "--mode", mode, *args, PARAMFLEET_LEASE_TTL_S="6")
        for mode in ("sync", "async", "geo")
    }
    for each in running.values():
        each.wait_for("worker0", "stopping after 20")
        each.wait_for("worker1", "training as")

    for each in running.values():
        each.send("worker1", signal.SIGKILL)

    for mode, each in running.items():
        assert each.code("worker0") == 1, mode
        assert "the job failed: worker 1: " in each.log("worker0"), mode


def test_a_coordinator_may_come_seconds_late(jobs: Any, tmp_path: Path) -> None:
    enough = tmp_path / "enough"
    enough.touch()
    running = jobs.new()
    for index in (0, 1):
        running.start_pserver(index, SCRIPT, "--until", str(enough))
        running.start_worker(index, SCRIPT, "--until", str(enough))

    time.sleep(3)  # noqa: TID251 - the lateness under test
    running.start_coordinator()

    ended = running.end()
    assert set(ended.codes.values()) == {0}, ended.story()


def test_pservers_may_come_after_the_workers(jobs: Any, tmp_path: Path) -> None:
    enough = tmp_path / "enough"
    enough.touch()
    running = jobs.new()
    running.start_coordinator()
    for index in (0, 1):
        running.start_worker(index, SCRIPT, "--until", str(enough))
    running.wait_for("coordinator", "worker")
    running.start_pserver(1, SCRIPT, "--until", str(enough))
    running.wait_for("pserver1", "job.joined")
    running.start_pserver(0, SCRIPT, "--until", str(enough))

    ended = running.end()

    assert set(ended.codes.values()) == {0}, ended.story()
