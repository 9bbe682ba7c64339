"""A worker dies, and its script is started again under its rank: the training goes on."""

import signal
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_again.py"
RETURNS = {"PARAMFLEET_COORDINATOR__WORKER_RETURN_S": "60", "PARAMFLEET_LEASE_TTL_S": "3"}


def started(jobs: Any, tmp_path: Path, *args: str, **env: str) -> Any:
    """Return a job of two workers that may come back."""
    return jobs.start(SCRIPT, *args, "--marks", str(tmp_path), **{**RETURNS, **env})


def again(running: Any, name: str, rank: int, *args: str, number: int = 1) -> str:
    """Wait for a worker's end by SIGKILL, and start it again."""
    assert running.code(name) == -signal.SIGKILL, running.story()
    other = f"worker{rank}.{number}"
    running.start_worker(rank, SCRIPT, *args, name=other)
    return other


def results(running: Any, names: list[str]) -> list[dict[str, Any]]:
    ended = running.end()
    left = {name: code for name, code in ended.codes.items() if code not in {0, -9}}
    assert not left, ended.story()
    return [ended.last_json(name) for name in names]


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Assert that a run's end is the other's, to the bit, and the losses that it has."""
    for name in ("rows", "dense", "buffers", "lr", "steps"):
        assert found[name] == expected[name], name
    losses = dict(map(tuple, expected["losses"]))
    assert {step: losses[step] for step, _ in found["losses"]} == dict(
        map(tuple, found["losses"])
    )
    assert len(found["losses"]) == expected["steps"] - found["begun"]


POINTS = ["0:0:backward", "0:5:forward", "1:6:backward", "0:7:stepped", "1:40:end"]


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_of_sync_takes_its_step_again(jobs: Any, tmp_path: Path, point: str) -> None:
    expected = jobs.run_once(SCRIPT)
    rank = int(point[0])
    args = ["--dies", point, "--marks", str(tmp_path)]
    running = started(jobs, tmp_path, "--dies", point)

    other = again(running, f"worker{rank}", rank, *args)

    names = [other if r == rank else f"worker{r}" for r in (0, 1)]
    for found, want in zip(results(running, names), expected, strict=True):
        assert_equal(found, want)


def test_both_may_die_again_and_again_with_barriers_between(jobs: Any, tmp_path: Path) -> None:
    expected = jobs.run(SCRIPT, "--barrier_every", "10").results
    dies = ["0:3:forward", "1:4:stepped", "0:12:backward", "1:40:finished"]
    args = ["--dies", *dies, "--marks", str(tmp_path), "--barrier_every", "10"]
    running = started(jobs, tmp_path, *args[: len(dies) + 1], *args[-2:])

    names = {0: "worker0", 1: "worker1"}
    for number, rank in enumerate((0, 1, 0, 1), start=1):
        names[rank] = again(running, names[rank], rank, *args, number=number)

    found = results(running, [names[0], names[1]])
    for one, want in zip(found, expected, strict=True):
        assert one["rows"] == want["rows"]
        assert one["dense"] == want["dense"]
        assert one["steps"] == 40
    assert found[1]["losses"] == []


@pytest.mark.parametrize("where", ["forward", "stepped"])
def test_a_pserver_with_a_disk_may_die_at_the_same_time(
    jobs: Any, tmp_path: Path, where: str
) -> None:
    expected = jobs.run_once(SCRIPT)
    args = ["--dies", f"0:9:{where}", f"1:17:{where}", "--marks", str(tmp_path)]
    disk = {
        "PARAMFLEET_PSERVER__DURABILITY": "async",
        "PARAMFLEET_PSERVER__DATA_DIR": str(tmp_path / "data"),
    }
    running = started(jobs, tmp_path, *args[:3], **disk)

    names = ["worker0", "worker1"]
    for rank, server in ((0, 1), (1, 0)):
        assert running.code(names[rank]) == -signal.SIGKILL, running.story()
        running.send(f"pserver{server}", signal.SIGKILL)
        assert running.code(f"pserver{server}") == -signal.SIGKILL
        names[rank] = f"worker{rank}.1"
        running.start_worker(rank, SCRIPT, *args, name=names[rank])
        running.start_pserver(server, SCRIPT, *args, name=f"pserver{server}.1")

    for found, want in zip(results(running, names), expected, strict=True):
        assert_equal(found, want)


def test_a_worker_that_nobody_starts_again_ends_the_job_by_name(
    jobs: Any, tmp_path: Path
) -> None:
    times = {"PARAMFLEET_COORDINATOR__WORKER_RETURN_S": "2", "PARAMFLEET_LEASE_TTL_S": "2"}
    running = started(jobs, tmp_path, "--dies", "1:5:forward", **times)

    assert running.code("worker0") == 1
    assert "worker 1" in running.log("worker0")
    assert "no process joined in its place in 2 s" in running.log("worker0")
    assert "worker.away" in running.log("coordinator")


@pytest.mark.parametrize("mode", ["async", "geo", "localsgd"])
def test_a_worker_goes_on_behind_what_the_servers_have_of_it(
    jobs: Any, tmp_path: Path, mode: str
) -> None:
    args = ["--mode", mode, "--dies", "0:11:backward", "--marks", str(tmp_path)]
    running = started(jobs, tmp_path, *args[:4])

    other = again(running, "worker0", 0, *args)

    found, still = results(running, [other, "worker1"])
    assert 0 < found["begun"] <= 11
    assert [step for step, _ in found["losses"]] == list(range(found["begun"], 40))
    assert found["steps"] == still["steps"] == 40
    assert found["rows"] == still["rows"]
    assert found["lr"] == still["lr"]


def test_others_wait_for_a_worker_of_async_within_max_staleness(
    jobs: Any, tmp_path: Path
) -> None:
    args = ["--mode", "async", "--max_staleness", "2", "--dies", "1:9:forward"]
    args += ["--marks", str(tmp_path)]
    running = started(jobs, tmp_path, *args[:6])

    other = again(running, "worker1", 1, *args)

    found, still = results(running, [other, "worker0"])
    assert found["steps"] == still["steps"] == 40
    assert found["rows"] == still["rows"]


def test_sync_goes_on_without_a_worker_if_the_strategy_says_so(
    jobs: Any, tmp_path: Path
) -> None:
    times = {"PARAMFLEET_COORDINATOR__WORKER_RETURN_S": "1", "PARAMFLEET_LEASE_TTL_S": "2"}
    dies = ["--on_loss", "shrink", "--dies", "1:7:backward"]
    running = jobs.start(
        SCRIPT, *dies, "--marks", str(tmp_path), workers=3, **{**RETURNS, **times}
    )

    running.wait_for("coordinator", "job.shrunk")
    first, _, third = results(running, ["worker0", "worker0", "worker2"])

    assert first["steps"] == third["steps"] == 40
    assert first["rows"] == third["rows"]
    assert first["dense"] == third["dense"]
    assert "worker.taken_out index=1 incarnation=1 step=7" in running.log("pserver0")
    assert "worker.taken_out index=1 incarnation=1 step=7" in running.log("pserver1")


def test_a_worker_that_comes_back_in_time_is_not_gone_on_without(
    jobs: Any, tmp_path: Path
) -> None:
    expected = jobs.run_once(SCRIPT)
    args = ["--on_loss", "shrink", "--dies", "0:7:stepped", "--marks", str(tmp_path)]
    running = started(jobs, tmp_path, *args[:4])

    other = again(running, "worker0", 0, *args)

    for found, want in zip(results(running, [other, "worker1"]), expected, strict=True):
        assert_equal(found, want)
    assert "job.shrunk" not in running.log("coordinator")
