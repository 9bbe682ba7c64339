"""Jobs in which a batch is out of range: what is left of it, and who hears of it."""

import json
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_guarded.py"


def far(a: dict[str, Any], b: dict[str, Any]) -> float:
    return max(float(np.abs(np.subtract(a[key], b[key])).max()) for key in ("rows", "dense"))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_sync_equals_one_process_without_the_batches_that_were_skipped(
    jobs: Any, optimizer: str
) -> None:
    """One worker's batch is bad, then those of both."""
    args = ["--optimizer", optimizer, "--bad", "1:3,0:5,1:5"]
    alone = jobs.local(SCRIPT, *args, "--stands_for", "2")

    results = jobs.run(SCRIPT, *args, workers=2, servers=2).results

    assert [result["skipped"] for result in results] == [[5], [3, 5]]
    assert [result["steps"] for result in results] == [8, 8]
    for result in results:
        assert far(result, alone) <= 1e-5
        assert np.isfinite(result["statistics"]).all()
    assert results[1]["named"][0].startswith("deep ")


@pytest.mark.parametrize("mode", ["async", "geo", "gpubox", "localsgd"])
def test_one_worker_equals_one_process_without_the_batch(jobs: Any, mode: str) -> None:
    args = ["--optimizer", "sgd", "--bad", "0:3", *["--dense"] * (mode == "localsgd")]
    alone = jobs.local(SCRIPT, *args, "--mode", "sync")
    assert alone["skipped"] == [3]

    (result,) = jobs.run(SCRIPT, *args, "--mode", mode, workers=1, servers=1).results

    assert result["skipped"] == [3]
    assert far(result, alone) <= 1e-5
    assert np.isfinite(result["statistics"]).all()


@pytest.mark.parametrize("mode", ["stale", "geo", "gpubox"])
def test_other_workers_go_on_and_everything_stays_finite(jobs: Any, mode: str) -> None:
    args = ["--mode", mode, "--optimizer", "sgd", "--bad", "1:2,1:3,0:4,1:4"]

    results = jobs.run(SCRIPT, *args, workers=2, servers=1).results

    assert [result["skipped"] for result in results] == [[4], [2, 3, 4]]
    for result in results:
        assert result["steps"] == 8
        assert np.isfinite([*result["rows"], *result["dense"]]).all()


def test_a_batch_that_is_to_end_the_training_ends_the_job_and_is_named(jobs: Any) -> None:
    ended = jobs.run(SCRIPT, "--action", "end", "--bad", "1:3", workers=2, servers=1)

    assert ended.codes["worker1"] != 0
    assert "step 3: the loss is nan, and must be a finite number" in ended.logs["worker1"]
    assert "deep" in ended.logs["worker1"]


def skipped(worker: dict[str, Any]) -> int:
    return int((worker["guard"] or {}).get("skipped", 0))


def test_an_operator_sees_which_step_was_skipped(jobs: Any) -> None:
    running = jobs.start(SCRIPT, "--bad", "1:3", "--waits_s", "3", workers=2, servers=1)
    running.wait_for("worker1", "step_skipped")
    admin = running.admin()
    status = admin.wait(lambda said: any(map(skipped, said["workers"])))
    (event,) = [each for each in admin.get("events") if each["kind"] == "worker.outside"]
    assert running.end().codes["worker1"] == 0

    assert list(map(skipped, status["workers"])) == [0, 1]
    assert event["words"].startswith("worker 1: step 3 skipped: the loss is nan, and must be")
    assert "; rows: deep " in event["words"], json.dumps(event)
