"""The benchmarks of training run from end to end at a tiny size. Speed is not judged."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from durability import CASES, REPLICA
from paramfleet_shared.system.processes.keeping import tied

pytestmark = pytest.mark.forked

FOLDER = Path(__file__).parents[3] / "benchmarks"


def run(script: str, tmp_path: Path, *options: str) -> dict[str, Any]:
    """Return a suite's result, which its last line and its file must both be."""
    output = tmp_path / "result.json"
    ended = subprocess.run(
        tied([sys.executable, str(FOLDER / script), "--quick", f"--output={output}", *options]),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    result: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    assert result == json.loads(output.read_text())
    assert result["method"]
    return result


@pytest.mark.processes
def test_every_mode_trains_and_is_set_beside_one_process(tmp_path: Path) -> None:
    result = run("training.py", tmp_path)

    assert result["benchmark"] == "training"
    assert set(result["summary"]) == {
        f"{mode}_train_vs_single{suffix}"
        for mode in ("async", "geo")
        for suffix in ("", "_cpu")
    }
    assert [row["mode"] for row in result["rows"]] == ["single", "sync", "async", "geo"]
    for row in result["rows"]:
        assert min(row["samples_per_s"]) > 0
        assert row["cpu_us_per_sample"] > 0
        assert 0 < row["auc"] < 1


@pytest.mark.processes
def test_passes_are_set_beside_sync_and_one_process(tmp_path: Path) -> None:
    result = run("gpubox.py", tmp_path)

    assert result["benchmark"] == "gpubox"
    assert set(result["summary"]) == {
        f"{case}_vs_{other}"
        for case in ("gpubox_1", "gpubox_2", "split_2")
        for other in ("single", "sync", "sync_cpu")
    }
    rows = {row["case"]: row for row in result["rows"]}
    assert all(min(row["samples_per_s"]) > 0 for row in rows.values())
    assert rows["gpubox 2"]["passes"] == 1
    assert rows["split 2"]["passes"] > 1
    assert 0 < rows["split 2"]["hit_share"] < 1


@pytest.mark.processes
def test_a_training_that_is_kept_is_set_beside_one_that_is_not(tmp_path: Path) -> None:
    result = run("durability.py", tmp_path)

    assert result["benchmark"] == "durability"
    costs = ["durability_async_cost", "durability_sync_cost"]
    costs += ["replica_cost"] if REPLICA in CASES else []
    assert set(result["summary"]) == {
        f"{cost}{suffix}" for cost in costs for suffix in ("", "_cpu")
    }
    rates, steps = result["rows"][: len(CASES)], result["rows"][len(CASES) :]
    assert [row["durability"] for row in rates] == [*CASES]
    assert all(min(row["samples_per_s"]) > 0 for row in rates)
    assert [row["durability"] for row in steps] == [*CASES]
    assert max(steps[0]["log_mb_per_s"]) == 0
    assert all(min(row["step_ms"]) > 0 for row in steps)
    assert all(min(row["snapshot_mb"]) > 0 for row in steps[1:3])


@pytest.mark.processes
@pytest.mark.slow
def test_pservers_that_are_killed_recover_and_their_parts_are_told(tmp_path: Path) -> None:
    result = run("recovery.py", tmp_path)

    assert result["benchmark"] == "recovery"
    assert set(result["summary"]) == {
        "recovery_p50_s",
        "recovery_p99_s",
        "recovery_cpu_s",
        "recovery_sync_loss_gap",
    }
    found = {row["figure"]: row["median"][0] for row in result["rows"]}
    assert found["recovery_s"] > 0
    assert found["replayed_mb"] > 0
    assert found["sync_loss_gap"] <= 1e-6
    parts = ("start", "join", "replay", "open", "return")
    assert all(found[f"{part}_s"] > 0 for part in parts)
    assert result["details"]["recoveries_s"]


@pytest.mark.processes
def test_small_steps_are_set_beside_one_process_and_a_bare_exchange(tmp_path: Path) -> None:
    result = run("small_steps.py", tmp_path)

    assert result["benchmark"] == "small_steps"
    rows = {row["case"]: row for row in result["rows"]}
    assert set(rows) == {"single", "sync", "floor"}
    assert all(min(row["samples_per_s"]) > 0 for row in rows.values())
    assert 0 < rows["sync"]["requests"] < 20, "two for each table, and more, if one by one"
    assert set(result["summary"]) == {
        f"small_each_adam_{case}_vs_single{suffix}"
        for case in ("sync", "floor")
        for suffix in ("", "_cpu")
    }


@pytest.mark.processes
def test_geo_and_async_train_over_a_wire_that_delays(tmp_path: Path) -> None:
    result = run("delay.py", tmp_path)

    assert result["benchmark"] == "delay"
    for name in ("geo_vs_async_rtt20ms", "prefetch_vs_async_rtt20ms"):
        assert result["details"]["spread"][name][1] > 0
        assert result["details"]["spread"][f"{name}_cpu"][1] > 0
        assert name in result["details"]["refused"], "no headline is of one round"
    assert {row["round_trip_ms"] for row in result["rows"]} == {0, 20}
    for row in result["rows"]:
        assert min(row["pairs_per_s"]) > 0
        assert row["bytes_per_pair"] > 0


@pytest.mark.processes
def test_word2vec_trains_beside_others_and_over_a_wire_that_delays(tmp_path: Path) -> None:
    result = run("word2vec.py", tmp_path)

    assert result["benchmark"] == "word2vec"
    for name in ("word2vec_geo_vs_async_rtt5ms", "word2vec_geo_vs_async"):
        assert result["details"]["spread"][name][1] > 0
    assert result["rows"][0]["one_process"] == "single"
    jobs = [row for row in result["rows"] if "job" in row]
    assert [row["job"] for row in jobs] == 2 * ["async", "prefetch", "geo"]
    assert all(min(row["words_per_s"]) > 0 for row in result["rows"])


@pytest.mark.processes
@pytest.mark.forked(False)
def test_a_workload_runs_alone_from_its_command_line() -> None:
    ended = subprocess.run(
        tied(
            [
                *(sys.executable, str(FOLDER / "work" / "word_pairs.py")),
                *("--dim=8", "--batches=20", "--warm=25", "--steps=30", "--independent"),
            ]
        ),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout.splitlines()[-1])
    assert figures["mode"] == "local"
    assert figures["samples_per_s"] > 0
    assert math.isfinite(figures["loss_of_50"])


@pytest.mark.processes
def test_a_slow_worker_is_measured_in_localsgd_and_sync(tmp_path: Path) -> None:
    result = run("localsgd_servers.py", tmp_path, "--budget=0")  # one round

    assert result["benchmark"] == "localsgd_servers"
    assert set(result["summary"]) == {
        "slow_worker_delay_percent", "slow_worker_delay_percent_sync",
    }  # fmt: skip
    assert [row["mode"] for row in result["rows"]] == ["localsgd", "sync"]
