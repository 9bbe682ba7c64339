"""A job that trains goes back to a checkpoint by ``paramfleet checkpoint load``."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paramfleet.session.saved_progress import read_progress
from paramfleet_shared.checkpoint.manifest import read_manifest, read_part
from paramfleet_shared.discovery.redis.embedded import EmbeddedRedis
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_worker.app.checkpoints.diffing import diff

pytestmark = [pytest.mark.processes, pytest.mark.slow]

MODES = ["sync", "async", "geo", "localsgd"]


class Loading:
    """A job of two workers and two pservers, and the command line that steers it."""

    def __init__(self, jobs: Any, mode: str, folder: Path, *args: str, **env: str) -> None:
        self.kept = folder / "kept"
        self.enough = folder / "enough"
        self.coordinators = ["coordinator"]
        words = ["--mode", mode, "--folder", str(folder), "--until", str(self.enough), *args]
        env = {"PARAMFLEET_COORDINATOR__CHECKPOINT_DIR": str(self.kept), **env}
        self.running = jobs.start("train_loaded.py", *words, workers=2, servers=2, **env)
        for rank in range(2):
            self.running.wait_for(f"worker{rank}", "training as")
        self.admin = self.running.admin()

    def command(self, *words: object) -> subprocess.CompletedProcess[str]:
        options = ["--url", self.admin.url, "--token", self.running.token, "--json"]
        return subprocess.run(
            tied([sys.executable, "-m", "paramfleet_worker", "checkpoint",
                  *map(str, words), *options]),
            env=read_environment(), capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip

    def trains(self, count: int, *ranks: int) -> None:
        """Wait until each worker, or these, have taken so many steps more."""
        before = self.admin.steps(*ranks)

        def further(status: dict[str, Any]) -> bool:
            workers = [w for w in status["workers"] if not ranks or w["rank"] in ranks]
            return all(
                (w["step"] or 0) >= at + count for w, at in zip(workers, before, strict=True)
            )

        self.admin.wait(further)

    def save(self, name: str) -> Path:
        done = self.command("write", "--name", name)
        assert done.returncode == 0, done.stderr
        return self.kept / name

    def said(self, rank: int) -> list[dict[str, Any]]:
        lines = self.running.log(f"worker{rank}").splitlines()
        return [json.loads(line[7:]) for line in lines if line.startswith("loaded ")]

    def start_coordinator_again(self) -> None:
        running, name = self.running, f"{self.coordinators[-1]}+"
        running.send(self.coordinators[-1], signal.SIGKILL)
        assert running.code(self.coordinators[-1]) == -signal.SIGKILL
        self.coordinators.append(name)
        running.start_coordinator(name=name)
        running.wait_for(name, "coordinator.serving")
        self.admin = running.admin()

    def end(self) -> list[dict[str, Any]]:
        self.enough.touch()
        ended = self.running.end()
        for killed in self.coordinators[:-1]:
            del ended.codes[killed]
        results: list[dict[str, Any]] = ended.results
        return results


def dense_of(folder: Path) -> Any:
    """Return the dense values of a checkpoint."""
    manifest = read_manifest(folder)
    (table,) = [each for each in manifest.tables if each.spec.kind == "dense"]
    parts = [
        read_part(folder, file, table.spec)
        for file in manifest.files
        if file.table == table.spec.name
    ]
    parts.sort(key=lambda part: part.start)
    return np.concatenate([part.values for part in parts])


@pytest.mark.parametrize(
    ("mode", "more"), [*((mode, ()) for mode in MODES), ("sync", ("--prefetch",))]
)
def test_a_running_job_goes_back_to_a_checkpoint_and_trains_on(
    jobs: Any, mode: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    job = Loading(jobs, mode, tmp_path, *more)
    job.trains(10)
    good = job.save("good")
    job.trains(30)

    loaded = job.command("load", good)
    assert loaded.returncode == 0, loaded.stderr + job.running.story()
    told = json.loads(loaded.stdout)
    job.running.wait_for("worker0", "loaded ")
    job.running.wait_for("worker1", "loaded ")
    job.trains(20)
    audit = [entry["action"] for entry in job.admin.get("audit")]
    results = job.end()

    steps = read_progress(good, read_manifest(good)).steps  # type: ignore[union-attr]
    assert (told["number"], told["state"], told["step"]) == (1, "loaded", steps)
    assert set(told["tables"]) == {t.spec.name for t in read_manifest(good).tables}
    for rank in range(2):
        (said,) = job.said(rank)
        assert (said["step"], said["schedule"]) == (steps, steps)
        np.testing.assert_array_equal(np.float32(said["dense"]), dense_of(good))
    if mode != "localsgd":
        found = diff(good, tmp_path / "after-1")
        assert found.equal, [table.to_line() for table in found.tables]
    assert audit == ["checkpoint", "load"]
    assert [result["loads"] for result in results] == [1, 1]
    assert all(result["steps"] > 60 for result in results)


@pytest.mark.parametrize("mode", ["sync", "geo"])
def test_what_can_not_be_loaded_changes_nothing_and_the_next_load_is_another(
    jobs: Any, mode: str, tmp_path: Path
) -> None:
    job = Loading(jobs, mode, tmp_path)
    job.trains(5)
    good, bad = job.save("good"), job.save("bad")
    manifest = read_manifest(bad)
    damaged = bad / next(f.name for f in manifest.files if f.table == "deep")
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\xff")

    refused = [job.command("load", where) for where in (bad, tmp_path / "none", "/tmp/none")]
    job.trains(5)
    loaded = job.command("load", good)
    job.trains(5)
    results = job.end()

    assert [each.returncode for each in refused] == [1, 1, 1]
    assert damaged.name in refused[0].stderr
    assert all("none" in each.stderr for each in refused[1:])
    assert loaded.returncode == 0, loaded.stderr
    assert json.loads(loaded.stdout)["number"] == 4
    assert [result["loads"] for result in results] == [1, 1]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_load_that_only_some_pservers_refuse_ends_the_job_by_name(
    jobs: Any, mode: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    job = Loading(jobs, mode, tmp_path, "--allowing", str(elsewhere))
    job.trains(5)
    shutil.copytree(job.save("good"), elsewhere / "good")

    refused = job.command("load", elsewhere / "good")
    ended = job.running.end()

    assert refused.returncode == 1
    assert str(elsewhere / "good") in refused.stderr
    assert [ended.codes[f"worker{rank}"] for rank in range(2)] == [1, 1], ended.story()
    for rank in range(2):
        assert "LoadIncompleteError" in ended.logs[f"worker{rank}"]


def test_workers_that_meet_in_the_script_load_before_or_after_that(
    jobs: Any, tmp_path: Path
) -> None:
    job = Loading(jobs, "async", tmp_path, "--meets")
    job.trains(10)
    good = job.save("good")
    for _ in range(4):
        job.trains(12)
        loaded = job.command("load", good)
        assert loaded.returncode == 0, loaded.stderr + job.running.story()
    job.trains(12)
    results = job.end()

    assert [result["loads"] for result in results] == [4, 4]


def test_a_worker_that_has_ended_has_the_load_refused_by_name(
    jobs: Any, tmp_path: Path
) -> None:
    job = Loading(jobs, "async", tmp_path, "--steps_of_0", "600")
    job.trains(5)
    good = job.save("good")
    job.running.wait_for("worker0", "stopping after 600")

    refused = job.command("load", good)
    job.trains(5, 1)
    results = job.end()

    assert refused.returncode == 1
    assert "worker 0 has ended its training; nothing was changed" in refused.stderr
    assert [result["loads"] for result in results] == [0, 0]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_load_is_carried_out_once_though_the_coordinator_starts_again(
    jobs: Any, mode: str, tmp_path: Path
) -> None:
    job = Loading(jobs, mode, tmp_path, PARAMFLEET_LEASE_TTL_S="6")
    job.trains(10)
    good = job.save("good")
    job.trains(20)

    status, asked = job.admin.post("load", {"dirname": str(good)})
    assert (status, asked) == (200, {"number": 1, "dirname": str(good)})
    job.start_coordinator_again()
    told = job.admin.wait(lambda s: s["load"] and s["load"]["state"] != "waiting")["load"]
    assert (told["number"], told["state"]) == (1, "loaded"), told
    job.start_coordinator_again()
    job.trains(30)
    again = job.command("load", good)
    assert again.returncode == 0, again.stderr
    results = job.end()

    assert json.loads(again.stdout)["number"] == 2
    assert [result["loads"] for result in results] == [2, 2]


async def test_a_registry_that_comes_back_empty_neither_repeats_a_load_nor_holds_the_next(
    jobs: Any, tmp_path: Path, own_redis: EmbeddedRedis
) -> None:
    await own_redis.start()
    job = Loading(
        jobs, "async", tmp_path, PARAMFLEET_REDIS=own_redis.url, PARAMFLEET_LEASE_TTL_S="6"
    )
    job.trains(10)
    good = job.save("good")
    first = job.command("load", good)
    assert first.returncode == 0, first.stderr

    own_redis.stop()
    await own_redis.start()
    job.trains(20)
    again = job.command("load", good)
    assert again.returncode == 0, again.stderr
    job.trains(10)
    results = job.end()

    assert [json.loads(each.stdout)["number"] for each in (first, again)] == [1, 2]
    assert [result["loads"] for result in results] == [2, 2]
