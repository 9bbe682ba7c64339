"""``paramfleet verify``: jobs whose processes die are right, and planted bugs are found."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_worker.app.verify.plan import MODES, MOVING_PACE_MS, Kill, Mode, Plan
from paramfleet_worker.app.verify.running import Ran, run_plan

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.forked]

STEPS = 120


async def ran(tmp_path: Path, plan: Plan, **environment: str) -> Ran:
    return await run_plan(plan, tmp_path, {**read_environment(), **environment}, SystemClock())


@pytest.mark.parametrize("mode", MODES)
async def test_no_change_is_lost_or_doubled_when_servers_die(
    tmp_path: Path, mode: Mode
) -> None:
    plan = Plan(
        seed=1,
        mode=mode,
        steps=STEPS,
        failpoints=(
            "pserver-0:after_apply_before_log=kill@30;pserver-0:before_join_answer=kill@1#2;"
            "pserver-0:before_write=full@2-4#3"
        ),
        faults="drop=0.01,duplicate=0.01,delay=0.02:5,seed=1",
        kills=(Kill("pserver-1", 80),),
    )

    found = await ran(tmp_path, plan)

    assert found.problems == []
    assert len(found.kills) == 3
    assert (found.acked, found.lost, found.doubled) == (2 * STEPS, 0, 0)
    assert all(seconds >= 0 for seconds in found.recovery_s)


async def test_the_coordinator_and_the_registry_may_die_and_a_process_stand_still(
    tmp_path: Path,
) -> None:
    plan = Plan(
        seed=1,
        mode="async",
        durability="sync",
        steps=STEPS,
        failpoints=(
            "before_placement_written=kill@4;pserver-0:before_sync=stop@5;"
            "pserver-1:before_sync=kill@10"
        ),
        kills=(Kill("redis-0", 90),),
    )

    found = await ran(tmp_path, plan)

    assert found.problems == []
    assert len(found.kills) == 3


LATE = "pserver-0:before_write=delay:400@9;pserver-0:before_write=kill@10"
"""The log is behind when its process dies."""


async def test_changes_that_wait_for_the_disk_when_a_server_dies_are_sent_again(
    tmp_path: Path,
) -> None:
    found = await ran(tmp_path, Plan(seed=1, mode="async", steps=STEPS, failpoints=LATE))

    assert found.problems == []
    assert len(found.kills) == 1


@pytest.mark.parametrize("mode", ["async", "localsgd"])
async def test_a_worker_that_comes_back_when_nobody_knows_the_job_any_more_loses_nothing(
    tmp_path: Path, mode: Mode
) -> None:
    kills = tuple(Kill(each, 30) for each in ("worker-1", "coordinator-0", "redis-0"))
    plan = Plan(seed=1, mode=mode, steps=STEPS, pace_ms=MOVING_PACE_MS, kills=kills)

    found = await ran(tmp_path, plan)

    assert found.problems == []
    assert len(found.kills) == 3


async def test_windows_that_no_snapshot_has_are_found(tmp_path: Path) -> None:
    points = "after_answer=delay:20;pserver-0:before_apply=kill@200"  # after a snapshot
    plan = Plan(seed=1, mode="async", steps=STEPS, failpoints=points)

    found = await ran(tmp_path, plan, PARAMFLEET_DEFECTS="windows_left_out")

    assert found.problems


BEHIND = "pserver-1:before_append_ack=delay:1000@20-400;pserver-0:before_apply=kill@150"
"""A follower is behind when the owner dies."""


async def test_changes_that_a_follower_lacks_when_an_owner_dies_are_sent_again(
    tmp_path: Path,
) -> None:
    found = await ran(tmp_path, followed(BEHIND))

    assert found.problems == []
    assert len(found.kills) == 1


async def test_changes_that_are_called_durable_before_a_follower_has_them_are_found(
    tmp_path: Path,
) -> None:
    # Where the follower has just caught up when the owner dies, nothing is wrong.
    problems: list[str] = []
    for number in range(5):
        folder = tmp_path / str(number)
        folder.mkdir()
        plan = followed(BEHIND.replace("kill@150", f"kill@{150 + number}"))
        found = await ran(folder, plan, PARAMFLEET_DEFECTS="durable_before_replica")
        problems = found.problems
        if problems:
            break

    assert problems


def followed(failpoints: str, mode: Mode = "async") -> Plan:
    """Return a run whose pservers follow each other."""
    return Plan(
        seed=1,
        mode=mode,
        steps=STEPS,
        replicas=1,
        pace_ms=MOVING_PACE_MS,
        failpoints=failpoints,
    )


def test_the_command_finds_changes_that_are_called_durable_too_early(tmp_path: Path) -> None:
    plan = Plan(seed=1, mode="async", steps=STEPS, failpoints=LATE)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan.facts()))
    words = [sys.executable, "-m", "paramfleet_worker", "verify", "--runs=1", "--json"]

    ended = subprocess.run(
        tied([*words, f"--plan={path}"]),
        env={
            **read_environment(),
            "TMPDIR": str(tmp_path),
            "PARAMFLEET_DEFECTS": "durable_before_log",
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 1, ended.stdout + ended.stderr
    run, summary = map(json.loads, ended.stdout.splitlines())
    assert run["problems"]
    assert Path(run["folder"], "log", "serverlog.0").is_file()
    assert (summary["runs"], summary["failed"], summary["seed"]) == (1, 1, 1)


@pytest.mark.timeout(900)
def test_runs_of_all_modes_are_right(tmp_path: Path) -> None:
    # Of 12 seeds in a row each mode has three, one of them with moves or replicas.
    words = [sys.executable, "-m", "paramfleet_worker", "verify", "--runs=12", "--jobs=2"]

    ended = subprocess.run(
        tied([*words, "--json"]),  # which has a prepared process of its own
        env={**read_environment(), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    *runs, summary = map(json.loads, ended.stdout.splitlines())
    wrong = [run for run in runs if run["problems"]]
    assert (ended.returncode, wrong) == (0, []), ended.stderr
    assert (summary["runs"], summary["lost"], summary["doubled"]) == (12, 0, 0)
    assert summary["kills"] >= 12
    assert summary["migrations"] >= 2


async def test_a_bound_of_staleness_is_kept_with_every_pserver(tmp_path: Path) -> None:
    faults = "drop=0.05,delay=0.1:30,seed=3"  # one pserver has what another lacks
    plan = Plan(seed=3, mode="async", steps=STEPS, max_staleness=1, faults=faults)

    found = await ran(tmp_path, plan)

    assert found.problems == []


async def test_a_server_may_die_before_its_training_has_begun(tmp_path: Path) -> None:
    points = (
        "pserver-0:snapshot_half_written=kill@1;"
        "pserver-0:snapshot_half_written=delay:1500@1#2"  # workers hear of it before
    )

    found = await ran(tmp_path, Plan(seed=1, mode="sync", steps=20, failpoints=points))

    assert found.problems == []
    assert len(found.kills) == 1


@pytest.mark.parametrize("mode", ["async", "geo"])
async def test_what_others_changed_is_right_when_a_worker_dies(
    tmp_path: Path, mode: Mode
) -> None:
    plan = Plan(
        seed=1,
        mode=mode,
        steps=STEPS,
        elastic=True,
        pace_ms=MOVING_PACE_MS,  # who kills reads of steps later on a busy machine
        failpoints="worker-1:after_answer=kill@20",
        kills=(Kill("pserver-1", 60),),
    )

    found = await ran(tmp_path, plan)

    assert found.problems == []
    assert len(found.kills) == 2
    assert found.acked == STEPS
