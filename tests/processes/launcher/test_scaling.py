"""Pservers are added, ended and killed while a job trains, and no change is lost or doubled."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.processes.launcher.scaling import Scaled, balanced, plan_of
from tests.processes.launcher.test_returning import pid_of

from paramfleet_worker.app.operating import AdminRefusedError
from paramfleet_worker.app.verify.plan import MODES, Mode

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.forked]


def protected(plan: dict[str, Any]) -> bool:
    return all(each["protected"] for each in plan["groups"]) and plan["moving"] is None


@pytest.mark.parametrize("mode", MODES)
async def test_groups_move_to_new_processes_and_back_amid_the_training(
    mode: Mode, tmp_path: Path
) -> None:
    job = Scaled(plan_of(mode, steps=600), tmp_path, "--server_num=2:4")

    async def act(job: Scaled) -> None:
        await job.reached(20)
        answer = await job.scale(4)
        assert answer == {"pservers": 4, "before": 2, "by_launcher": True, "advice": ""}
        plan = await job.until(balanced(4))
        assert plan["moves"] >= 2
        await job.scale(3)
        plan = await job.until(balanced(3))
        assert [each["index"] for each in plan["processes"] if each["alive"]] == [0, 1, 2]

    checked = job.check(await job.run(act))
    assert checked.problems == []
    assert (checked.lost, checked.doubled) == (0, 0)


@pytest.mark.parametrize("mode", ["sync", "geo"])
async def test_a_follower_takes_over_from_a_process_that_is_killed(
    mode: Mode, tmp_path: Path
) -> None:
    job = Scaled(plan_of(mode, steps=600), tmp_path, "--server_num=2:4", "--replicas=1")

    async def act(job: Scaled) -> None:
        await job.reached(20)
        await job.until(protected)
        job.kill("pserver-1")
        plan = await job.until(lambda plan: plan["takeovers"] == 2)
        assert {each["owner"] for each in plan["groups"]} == {0}
        await job.reached(job.step + 5)
        await job.until(protected)  # the launcher has started it again

    checked = job.check(await job.run(act))
    assert checked.problems == []


def runs_below(folder: Path) -> list[Path]:
    """Return what pservers keep of trainings."""
    return list(folder.glob("data/**/run-*"))


async def test_a_process_comes_back_to_its_groups_from_the_disk(tmp_path: Path) -> None:
    options = ("--server_num=2:4", f"--data-dir={tmp_path / 'data'}")
    job = Scaled(plan_of("async", steps=600), tmp_path, *options)

    async def act(job: Scaled) -> None:
        await job.reached(20)
        await job.scale(1)
        await job.until(balanced(1))  # one disk has the groups of both
        before = await job.scale(2)
        assert before["before"] == 1
        await job.until(balanced(2))
        terms = [each["term"] for each in (await job.status())["plan"]["groups"]]
        job.kill("pserver-1")
        await job.until(
            lambda plan: (
                balanced(2)(plan) and sum(each["term"] for each in plan["groups"]) > sum(terms)
            )
        )
        await job.reached(job.step + 5)

    checked = job.check(await job.run(act))
    assert checked.problems == []
    assert runs_below(tmp_path) == [], "nothing of a job that ended well stays"


async def test_the_process_that_has_a_group_is_hurt_by_what_is_for_it(tmp_path: Path) -> None:
    options = ("--server_num=2:4", "--chaos", f"--data-dir={tmp_path / 'data'}")
    job = Scaled(plan_of("async", steps=600), tmp_path, *options)

    async def act(job: Scaled) -> None:
        await job.reached(20)
        await job.scale(1)
        plan = await job.until(balanced(1))  # its own groups came first
        before = [each["term"] for each in plan["groups"]]
        hurt = await job.hurt("kill", "pserver:0")
        assert hurt["incarnation"] == before[0]
        await job.until(
            lambda plan: all(
                each["term"] > term for each, term in zip(plan["groups"], before, strict=True)
            )
        )
        await job.reached(job.step + 5)

    checked = job.check(await job.run(act))
    assert checked.problems == []
    assert any("pserver 0 was killed by SIGKILL" in line for line in job.lines)


async def test_a_process_that_is_asked_to_end_hands_its_groups_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARAMFLEET_PSERVER__DRAIN_TIMEOUT_S", "0.01")  # of requests alone
    job = Scaled(plan_of("async", steps=600), tmp_path, "--server_num=2:4")

    async def act(job: Scaled) -> None:
        await job.reached(20)
        with pytest.raises(AdminRefusedError, match=r"--server_num=2:5"):
            await job.scale(5)
        os.kill(job.pids["pserver-1"], signal.SIGTERM)
        await job.until(balanced(1))
        await job.reached(job.step + 5)

    checked = job.check(await job.run(act))
    assert checked.problems == []
    assert not any("pserver 1 exited" in line for line in job.lines)


async def test_the_last_process_that_is_asked_to_end_waits_for_nobody(tmp_path: Path) -> None:
    job = Scaled(plan_of("async", steps=600), tmp_path, "--server_num=2:4")

    async def act(job: Scaled) -> None:
        await job.reached(20)
        for name in ("pserver-0", "pserver-1"):
            os.kill(job.pids[name], signal.SIGTERM)
        await asyncio.Event().wait()  # the training keeps its pace until it fails

    await job.run(act, fails=True)
    said = "".join(job.lines)
    assert "there is no other pserver that could take the groups" in said
    assert "stopped by SIGTERM" in said


async def test_a_training_that_ends_before_its_groups_are_taken_is_done(tmp_path: Path) -> None:
    job = Scaled(plan_of("async", steps=60), tmp_path, "--server_num=2:4")

    async def act(job: Scaled) -> None:
        await job.reached(50)
        for name in ("pserver-0", "pserver-1"):
            os.kill(job.pids[name], signal.SIGTERM)
        await job.until(lambda plan: all(each["draining"] for each in plan["processes"]))

    checked = job.check(await job.run(act))
    assert checked.problems == []
    assert not any("exited with code" in line for line in job.lines)


COMES_LATE = """
    from pathlib import Path

    if role == "worker":

        async def train(session):
            while await asyncio.to_thread(os.path.exists, "wait"):
                await asyncio.sleep(0.05)

        take_part(train)
    else:
        from paramfleet_pserver.app import run
        from paramfleet_shared.settings.failpoints import LIFE

        say("comes")
        pause = threading.Event()
        while os.environ[LIFE] == "2" and "coordinator.ended" not in Path(
            "log/coordinatorlog.0"
        ).read_text():
            pause.wait(0.05)
        run()
    """


def test_a_pserver_that_comes_back_when_the_job_has_finished_ends_well(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "wait").touch()
    options = ("--server_num=2:4", "--worker_num=1", "--data-dir=data", "--rerun-script")
    launched = launch(COMES_LATE, *options)
    launched.read_until("job.training")

    os.kill(pid_of(launched, 0), signal.SIGKILL)
    launched.read_until("group.back group=0", "group.back group=1")
    (tmp_path / "wait").unlink()
    code = launched.read_to_end()

    assert code == 0, launched.text
    assert "pserver.not_needed" in (tmp_path / "log" / "serverlog.0").read_text()
