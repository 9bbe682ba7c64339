"""Workers of an elastic job die, hang, raise, come late and leave; the others train on."""

import json
import re
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_elastic.py"
MODES = pytest.mark.parametrize("mode", ["async", "geo"])
TIMES = {
    "PARAMFLEET_COORDINATOR__ELASTIC": "true",
    "PARAMFLEET_COORDINATOR__WORKER_GRACE_S": "8",
    "PARAMFLEET_LEASE_TTL_S": "3",
}
"""A paused worker has five seconds from the end of its lease to come back."""


def training(jobs: Any, *args: str, **env: str) -> Any:
    """Return a job whose three workers train."""
    running = jobs.start(SCRIPT, *args, workers=3, **{**TIMES, **env})
    trains_on(running, "worker0", "worker1", "worker2")
    return running


def trains_on(running: Any, *names: str) -> None:
    """Wait until each of these workers has taken some more steps."""
    said = {name: running.log(name).count("trained ") for name in names}
    for name in names:
        running.wait_for(name, "trained ", times=said[name] + 2)


def wait_alive(running: Any, rank: int, *, alive: bool, within_s: float = 60.0) -> None:
    """Wait until the status says of a worker that its lease runs, or has ended."""
    address = re.findall(r"http://[0-9.:]+", running.log("coordinator"))[-1]
    deadline = time.perf_counter() + within_s
    while True:
        request = urllib.request.Request(f"{address}/status", headers=running.heads)
        with urllib.request.urlopen(request, timeout=30) as answer:
            members = json.load(answer)["members"]
        (found,) = [m for m in members if (m["role"], m["index"]) == ("worker", rank)]
        if found["alive"] == alive:
            return
        assert time.perf_counter() < deadline, members


def results(running: Any, names: list[str]) -> list[dict[str, Any]]:
    """Wait for the end; return what these workers say, which all must end well."""
    ended = running.end()
    assert [ended.codes[name] for name in names] == [0] * len(names), ended.story()
    assert ended.codes["pserver0"] == ended.codes["pserver1"] == 0, ended.story()
    lines = [ended.logs[name].splitlines() for name in names]
    return [json.loads([line for line in said if line.startswith("{")][-1]) for said in lines]


def assert_all_hold_the_same(found: list[dict[str, Any]]) -> None:
    """Assert that the workers hold the same values, and those of the pservers."""
    for one in found:
        assert one["difference"] < 1e-5
        np.testing.assert_allclose(one["rows"], found[0]["rows"], atol=1e-5)
        np.testing.assert_allclose(one["dense"], found[0]["dense"], atol=1e-5)


@MODES
def test_workers_die_come_late_and_leave_while_the_coordinator_is_restarted(
    jobs: Any, mode: str, tmp_path: Path
) -> None:
    enough = tmp_path / "enough"
    args = ["--mode", mode, "--until", str(enough)]
    running = training(jobs, *args)

    running.send("worker2", signal.SIGKILL)
    running.start_worker(None, SCRIPT, *args, name="worker_new")
    running.wait_for("coordinator", "worker.lost")
    trains_on(running, "worker0", "worker1", "worker_new")
    running.send("coordinator", signal.SIGKILL)
    running.send("worker1", signal.SIGTERM)
    assert running.code("worker1") == 0, running.log("worker1")
    running.start_coordinator(name="successor")
    running.start_worker(None, SCRIPT, *args, name="worker_late")
    trains_on(running, "worker0", "worker_new", "worker_late")
    enough.touch()

    names = ["worker0", "worker_new", "worker_late"]
    found = results(running, names)
    assert_all_hold_the_same(found)
    assert running.code("successor") == 0
    assert "worker.leaving" in running.log("worker1")
    ranks = [one["rank"] for one in found]
    assert ranks[0] == 0
    assert len(set(ranks)) == 3


@MODES
def test_a_paused_worker_goes_on_and_one_paused_for_long_is_fenced(
    jobs: Any, mode: str, tmp_path: Path
) -> None:
    enough, wrong = tmp_path / "enough", tmp_path / "wrong"
    args = ["--mode", mode, "--until", str(enough), "--raise_if", str(wrong)]
    running = training(jobs, *args)

    running.send("worker1", signal.SIGSTOP)
    wait_alive(running, 1, alive=False)
    running.send("worker1", signal.SIGCONT)
    wait_alive(running, 1, alive=True)
    trains_on(running, "worker0", "worker1", "worker2")
    assert "worker.lost" not in running.log("coordinator")

    running.send("worker1", signal.SIGSTOP)
    running.wait_for("coordinator", "worker.lost")
    trains_on(running, "worker0", "worker2")
    running.send("worker1", signal.SIGCONT)
    assert running.code("worker1") == 1
    assert "FencedError" in running.log("worker1").splitlines()[-1]

    wrong.touch()
    assert running.code("worker0") == 1
    running.wait_for("coordinator", "ZeroDivisionError: the script's own mistake")
    trains_on(running, "worker2")
    enough.touch()

    assert_all_hold_the_same(results(running, ["worker2"]))
    assert running.code("coordinator") == 0


@pytest.mark.parametrize("mode", ["async", "geo", "localsgd"])
def test_who_comes_late_begins_with_the_buffers_of_those_who_train(
    jobs: Any, mode: str, tmp_path: Path
) -> None:
    enough = tmp_path / "enough"
    args = ["--mode", mode, "--until", str(enough)]
    running = jobs.start("train_late.py", *args, workers=2, servers=1, **TIMES)
    running.wait_for("worker0", "trained 80")
    running.wait_for("worker1", "trained 80")

    running.start_worker(None, "train_late.py", *args, name="worker_late")
    running.wait_for("worker_late", "trained 20")
    enough.touch()

    ended = running.end()
    assert set(ended.codes.values()) == {0}, ended.story()
    began = ended.last_json("worker_late")
    assert began["0.num_batches_tracked"] > 0
    assert min(began["0.running_mean"]) > 0.5, "of inputs around 7; a fresh one is 0"
    assert ended.last_json("worker0")["0.running_mean"] == [0.0] * 4


def test_sync_is_refused_in_an_elastic_job(jobs: Any, tmp_path: Path) -> None:
    enough = str(tmp_path / "enough")
    running = jobs.start(SCRIPT, "--mode", "sync", "--until", enough, workers=1, **TIMES)

    assert running.code("worker0") == 1

    said = running.log("worker0")
    assert "ElasticModeError" in said
    assert "a_sync = False" in said
    assert "elastic = True" in said
