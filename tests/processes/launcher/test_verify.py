"""``paramfleet verify``: jobs whose processes die are right, and planted bugs are found."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_worker.app.verify.plan import MODES, Kill, Mode, Plan

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.forked]

STEPS = 120


class Verified(NamedTuple):
    code: int
    run: dict[str, Any]
    summary: dict[str, Any]
    text: str


@pytest.fixture
def kept() -> Iterator[list[str]]:
    """Return a list of folders to remove."""
    folders: list[str] = []
    yield folders
    for folder in folders:
        shutil.rmtree(folder)


def verified(
    tmp_path: Path, plan: Plan, kept: list[str], *options: str, **environment: str
) -> Verified:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan.facts()))
    ended = subprocess.run(
        tied(
            [
                *(sys.executable, "-m", "paramfleet_worker", "verify", "--runs=1", "--json"),
                *(options or (f"--plan={path}",)),
            ]
        ),
        cwd=tmp_path,
        env={**read_environment(), "TMPDIR": str(tmp_path), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    text = ended.stdout + ended.stderr
    lines = ended.stdout.splitlines()
    assert len(lines) == 2, text
    run, summary = map(json.loads, lines)
    kept += filter(None, [run["folder"]])
    return Verified(ended.returncode, run, summary, text)


@pytest.mark.parametrize("mode", MODES)
def test_no_change_is_lost_or_doubled_when_servers_die(
    tmp_path: Path, mode: Mode, kept: list[str]
) -> None:
    plan = Plan(
        seed=1,
        mode=mode,
        steps=STEPS,
        failpoints=(
            "pserver-0:after_apply_before_log=kill@30;pserver-0:while_replaying=kill@9#2;"
            "pserver-0:before_write=full@2-4#3"
        ),
        faults="drop=0.01,duplicate=0.01,delay=0.02:5,seed=1",
        kills=(Kill("pserver-1", 80),),
    )

    found = verified(tmp_path, plan, kept)

    assert (found.code, found.run["problems"]) == (0, []), found.text
    summary = found.summary
    assert summary["kills"] == 3
    assert (summary["acked"], summary["lost"], summary["doubled"]) == (2 * STEPS, 0, 0)
    assert summary["recovery_p99_s"] > 0


def test_the_coordinator_and_the_registry_may_die_too(tmp_path: Path, kept: list[str]) -> None:
    plan = Plan(
        seed=1,
        mode="async",
        durability="sync",
        steps=STEPS,
        failpoints="before_placement_written=kill@4;pserver-1:before_sync=kill@10",
        kills=(Kill("redis-0", 90),),
    )

    found = verified(tmp_path, plan, kept)

    assert (found.code, found.run["problems"]) == (0, []), found.text
    assert found.summary["kills"] == 3


def test_changes_that_are_called_durable_too_early_are_found_to_be_lost(
    tmp_path: Path, kept: list[str]
) -> None:
    late = "pserver-0:before_write=delay:400@9;pserver-0:before_write=kill@10"
    plan = Plan(seed=1, mode="async", steps=STEPS, failpoints=late)

    found = verified(tmp_path, plan, kept, PARAMFLEET_DEFECTS="durable_before_log")

    assert found.code == 1, found.text
    assert found.run["problems"]
    assert Path(found.run["folder"], "log", "serverlog.0").is_file()


def test_windows_that_are_not_recovered_are_found(tmp_path: Path, kept: list[str]) -> None:
    plan = Plan(seed=1, mode="async", steps=STEPS, failpoints="pserver-0:before_apply=kill@60")

    found = verified(tmp_path, plan, kept, PARAMFLEET_DEFECTS="windows_left_out")

    assert found.code == 1, found.text
    assert found.run["problems"]


def test_the_same_plan_is_right_without_a_planted_bug(tmp_path: Path, kept: list[str]) -> None:
    late = "pserver-0:before_write=delay:400@9;pserver-0:before_write=kill@10"
    plan = Plan(seed=1, mode="async", steps=STEPS, failpoints=late)

    found = verified(tmp_path, plan, kept)

    assert (found.code, found.run["problems"]) == (0, []), found.text
    assert found.summary["kills"] == 1
