"""An operator steers a job that trains: what is asked for happens."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from paramfleet_shared.checkpoint.manifest import read_manifest

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def start(jobs: Any, *args: str, workers: int = 2, **env: str) -> tuple[Any, Any]:
    running = jobs.start("train_long.py", *args, workers=workers, servers=1, **env)
    for rank in range(workers):
        running.wait_for(f"worker{rank}", "training as")
    admin = running.admin()
    admin.wait(lambda status: all((w["step"] or 0) > 5 for w in status["workers"]))
    return running, admin


@pytest.mark.parametrize("mode", ["sync", "geo"])
def test_a_paused_job_takes_no_step_until_it_is_resumed_and_ends_in_good_order(
    jobs: Any, mode: str
) -> None:
    running, admin = start(jobs, "--mode", mode, "--asks", PARAMFLEET_BARRIER_TIMEOUT_S="2")

    assert admin.post("pause") == (200, {"paused": True, "before": {"paused": False}})
    admin.wait(lambda s: all(w["phase"] in {"pause", "barrier", "push"} for w in s["workers"]))
    paused = admin.wait(lambda s: any(w["split"].get("pause", 0) > 0.9 for w in s["workers"]))
    # By then the samples hold seconds of standing still; in sync those are longer than the
    # patience for a step that isn't whole.
    assert paused["state"] == "paused"
    stands = admin.steps()
    admin.wait(lambda s: s["now_s"] > paused["now_s"] + 3)
    assert admin.steps() == stands

    assert admin.post("resume")[1]["before"] == {"paused": True}
    admin.wait(
        lambda s: all(w["step"] > at + 5 for w, at in zip(s["workers"], stands, strict=True))
    )

    assert admin.post("end")[0] == 200
    ended = running.end()
    assert ended.codes == dict.fromkeys(running.pids, 0), ended.story()
    assert all("left with" in ended.logs[f"worker{rank}"] for rank in (0, 1))


def test_a_script_that_does_not_ask_is_ended_with_status_0(jobs: Any) -> None:
    running, admin = start(jobs, "--mode", "async")

    assert admin.post("end")[0] == 200

    ended = running.end()
    assert ended.codes == dict.fromkeys(running.pids, 0), ended.story()


@pytest.mark.parametrize("mode", ["async", "geo"])
def test_a_drained_worker_leaves_and_the_others_go_on(
    jobs: Any, mode: str, tmp_path: Path
) -> None:
    enough = tmp_path / "enough"
    running, admin = start(jobs, "--mode", mode, "--until", str(enough), workers=3)

    assert admin.post("workers/2/drain") == (200, {"rank": 2, "drained": True})
    assert running.code("worker2") == 0, running.log("worker2")
    before = admin.steps(0, 1)
    status = admin.wait(
        lambda s: all(w["step"] > at + 20 for w, at in zip(s["workers"], before, strict=False))
    )
    assert status["workers"][2]["done"]
    assert status["state"] == "training"
    assert "worker 2 has" in " ".join(event["words"] for event in admin.get("events"))

    enough.touch()
    ended = running.end()
    assert ended.codes == dict.fromkeys(running.pids, 0), ended.story()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_rows_that_would_go_are_counted_and_in_async_they_go(
    jobs: Any, mode: str, tmp_path: Path
) -> None:
    enough = tmp_path / "enough"
    evict = json.dumps({"max_rows": 60, "headroom": 0.5, "every_steps": 0})
    running, admin = start(jobs, "--mode", mode, "--until", str(enough), "--evict", evict)

    def told(number: int) -> dict[str, Any]:
        done: dict[str, Any] = admin.wait(
            lambda s: (s["shrink"] or {"number": 0})["number"] == number
        )["shrink"]
        return done

    code, asked = admin.post("tables/shrink", {"dry_run": True})
    assert (code, asked) == (200, {"number": 1, "table": "", "dry_run": True})
    would = told(1)
    assert would["error"] == ""
    (count,) = would["rows"].values()
    assert count > 0
    assert admin.post("tables/shrink", {"table": "none"})[0] == (409 if mode == "sync" else 200)
    if mode == "async":
        assert "has no accessor and no eviction_configs" in told(2)["error"]
        assert admin.post("tables/shrink", {"table": "deep"})[0] == 200
        assert told(3)["rows"]["deep"] > 0
    assert admin.get("audit")[0]["action"] == "shrink"

    enough.touch()
    ended = running.end()
    assert ended.codes == dict.fromkeys(running.pids, 0), ended.story()


def test_settings_change_live_and_back(jobs: Any, tmp_path: Path) -> None:
    enough = tmp_path / "enough"
    running, admin = start(jobs, "--mode", "geo", "--k_steps", "2", "--until", str(enough))

    changed = admin.post("settings", {"k_steps": 100, "lr": 0.125})
    assert changed == (
        200, {"settings": {"k_steps": 100, "lr": 0.125}, "before": {"k_steps": 2, "lr": 0.01}}
    )  # fmt: skip
    status = admin.wait(lambda s: rounds_a_step(admin) < 0.05)
    assert status["settings"] == {"k_steps": 100, "lr": 0.125, "max_staleness": None}

    back = admin.post("settings", changed[1]["before"])
    assert back[1]["before"] == {"k_steps": 100, "lr": 0.125}
    admin.wait(lambda s: rounds_a_step(admin) > 0.2)
    assert [entry["action"] for entry in admin.get("audit")] == ["settings", "settings"]

    enough.touch()
    ended = running.end()
    assert ended.codes == dict.fromkeys(running.pids, 0), ended.story()


def rounds_a_step(admin: Any) -> float:
    """Return how many exchanges worker 0 had in a step, of its last samples."""
    samples = admin.get("history")["workers"]["0"]
    return float(samples[-1]["calls_per_step"]) if samples else math.nan


def test_a_live_staleness_bound_holds_the_fast_one_back(jobs: Any, tmp_path: Path) -> None:
    enough = tmp_path / "enough"
    running, admin = start(
        jobs, "--mode", "async", "--until", str(enough), "--slow_data_ms", "10"
    )
    admin.wait(lambda s: lead(s) > 20)

    assert admin.post("settings", {"max_staleness": 3})[1]["before"] == {"max_staleness": None}

    admin.wait(lambda s: lead(s) <= 5)  # the slow one catches up
    assert admin.post("settings", {"max_staleness": None})[1]["before"] == {"max_staleness": 3}
    admin.wait(lambda s: lead(s) > 20)

    enough.touch()
    ended = running.end()
    assert ended.codes == dict.fromkeys(running.pids, 0), ended.story()


def lead(status: dict[str, Any]) -> int:
    return int(status["workers"][0]["step"] - status["workers"][1]["step"])


def test_a_checkpoint_is_written_while_the_job_is_paused_and_can_be_read(
    jobs: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    running, admin = start(
        jobs, "--mode", "async", "--asks", PARAMFLEET_COORDINATOR__CHECKPOINT_DIR=str(folder)
    )
    admin.post("pause")

    assert admin.post("checkpoint", {"name": "first"}) == (
        200, {"number": 1, "dirname": f"{folder}/first"}
    )  # fmt: skip
    written = admin.wait(lambda s: s["checkpoint"] is not None)["checkpoint"]
    assert (written["number"], written["error"]) == (1, "")
    manifest = read_manifest(folder / "first")
    assert {table.spec.name for table in manifest.tables} == {"deep", "dense_0"}

    assert admin.post("checkpoint", {"name": "../outside"})[0] == 422
    admin.post("end")
    ended = running.end()
    assert ended.codes == dict.fromkeys(running.pids, 0), ended.story()


def test_what_a_mode_can_not_do_is_refused_with_its_name(jobs: Any) -> None:
    running, admin = start(jobs, "--mode", "sync", "--asks")

    for path, body in (
        ("workers/1/drain", {}),
        ("settings", {"k_steps": 4}),
        ("settings", {"max_staleness": 4}),
    ):
        status, answer = admin.post(path, body)
        assert status == 409
        assert "sync" in answer["error"]["message"]
        assert answer["error"]["facts"]["mode"] == "sync"
    assert admin.get("audit") == []

    admin.post("end")
    ended = running.end()
    assert ended.codes == dict.fromkeys(running.pids, 0), ended.story()
