"""``paramfleet chaos``: hurts a job that was started for it, and no other."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.processes.launcher.test_steering import steered

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.clock import SystemClock
from paramfleet_worker.app.verify.plan import Order, Plan
from paramfleet_worker.app.verify.running import run_plan

__all__ = ["steered"]

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.forked]


def test_a_job_that_was_not_started_for_it_is_not_hurt(steered: Any) -> None:
    launched = steered.start("--job=whole")

    refused = steered.command("chaos", "--job=whole", "kill", "pserver:0")

    assert refused.returncode == 1
    assert "paramfleet launch --chaos" in refused.stderr
    assert json.loads(steered.command("audit", "--job=whole", "--json").stdout) == []
    del launched


def test_what_is_asked_for_is_audited_and_an_event(steered: Any) -> None:
    steered.start("--job=hurt", "--chaos")

    done = steered.command("chaos", "--job=hurt", "slow", "pserver:0", "--for=0.5", "--json")

    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["action"], said["role"], said["index"], said["by"]) == (
        "slow",
        "pserver",
        0,
        5,
    )
    (entry,) = json.loads(steered.command("audit", "--job=hurt", "--json").stdout)
    assert (entry["action"], entry["after"]["number"]) == ("chaos", 1)
    assert entry["who"]
    hurts = json.loads(steered.command("status", "--job=hurt", "--json").stdout)["orders"][
        "hurts"
    ]
    assert [hurt["action"] for hurt in hurts] == ["slow"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["kill", "worker:7"], "no living process is worker:7"),
        (["kill", "worker:0", "--at=before_apply"], "a point of a worker"),
        (["drop", "worker:0", "worker:1"], "a process that worker calls"),
        (["slow", "worker:0", "--by=0"], "a number from 1.5"),
        (["full", "worker:0"], "of pserver"),
    ],
)
def test_what_can_not_be_is_refused(steered: Any, words: list[str], reason: str) -> None:
    steered.start("--job=hurt", "--chaos")

    refused = steered.command("chaos", "--job=hurt", *words)

    assert refused.returncode == 1
    assert reason in refused.stderr


async def test_a_job_recovers_from_all_that_is_done_to_it(tmp_path: Path) -> None:
    orders = (
        Order(20, ("kill", "pserver:0", "--at", "after_apply_before_log:3")),
        Order(20, ("drop", "worker:0", "--rate=0.1", "--for=1")),
        Order(20, ("duplicate", "pserver:1", "worker:1", "--rate=0.2", "--for=1")),
        Order(40, ("partition", "worker:1", "pserver:1", "--for=0.5")),
        Order(40, ("reorder", "worker:0", "pserver:1", "--rate=0.5", "--for=1")),
        Order(60, ("full", "pserver:1", "--for=0.5")),
        Order(60, ("clock", "coordinator", "--by=-3600")),
        Order(80, ("stop", "worker:0", "--for=0.5")),
        Order(160, ("kill", "redis")),  # who has no registry can't be given orders
    )
    plan = Plan(seed=1, mode="async", steps=240, pace_ms=40, orders=orders)

    ran = await run_plan(plan, tmp_path, read_environment(), SystemClock())

    assert ran.problems == []
    assert len(ran.kills) == 1  # Redis says nothing when it dies
    assert (ran.lost, ran.doubled, ran.acked) == (0, 0, 480)
