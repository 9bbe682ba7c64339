"""``sync_batch_norm``: workers normalize by the batches of all, as one process does."""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_shared_norms.py"
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


def mean_losses(results: list[dict[str, Any]]) -> list[float]:
    """Return the loss of each step, over the workers that took it."""
    longest = max(len(result["told"]) for result in results)
    told = [
        [r["told"][step] for r in results if step < len(r["told"])] for step in range(longest)
    ]
    return [sum(loss * n for loss, n in each) / sum(n for _, n in each) for each in told]


@pytest.mark.parametrize(("workers", "tail"), [(2, 0), (3, 0), (2, 5)])
def test_workers_equal_one_process_with_the_whole_batch(
    jobs: Any, workers: int, tail: int
) -> None:
    args = ["--workers", str(workers), "--tail", str(tail)]
    alone = jobs.local(SCRIPT, *args)

    results = jobs.run(SCRIPT, *args, workers=workers).results

    np.testing.assert_allclose(mean_losses(results), mean_losses([alone]), atol=1e-5)
    grads = [np.multiply(r["first_grads"], r["told"][0][1]) for r in results]
    whole = np.sum(grads, axis=0) / alone["told"][0][1]
    np.testing.assert_allclose(whole, alone["first_grads"], atol=1e-5)
    for result in results:
        np.testing.assert_allclose(result["dense"], alone["dense"], atol=1e-5)
        np.testing.assert_allclose(result["outputs"], alone["outputs"], atol=5e-5)
        for name in (*BUFFERS, *(f"wide.{name}" for name in BUFFERS)):
            np.testing.assert_allclose(result[name], alone[name], atol=1e-5, err_msg=name)
        assert result["dense"] == results[0]["dense"]


def test_without_it_they_don_t(jobs: Any) -> None:
    alone = jobs.local(SCRIPT)

    results = jobs.run(SCRIPT, "--plain").results

    assert np.abs(np.subtract(mean_losses(results), mean_losses([alone]))).max() > 1e-3


@pytest.mark.parametrize("mode", ["async", "geo", "localsgd"])
def test_other_modes_refuse_it(jobs: Any, mode: str) -> None:
    ended = jobs.run(SCRIPT, "--mode", mode, workers=1, servers=1)

    assert ended.codes["worker0"] == 1
    assert "sync_batch_norm = True: " in ended.logs["worker0"]
    assert "StrategyError" in ended.logs["worker0"]


def test_a_job_in_which_only_some_workers_set_it_is_refused(jobs: Any) -> None:
    ended = jobs.run(SCRIPT, "--only", "0")

    assert set(ended.codes.values()) != {0}
    said = ended.logs["worker0"] + ended.logs["worker1"]
    assert "sync_batch_norm" in said
    assert "every worker must use the same strategy" in said


def test_a_second_backward_in_a_step_is_refused_before_anything_is_pushed(jobs: Any) -> None:
    ended = jobs.run(SCRIPT, "--accumulate")

    assert ended.codes["worker0"] == 1
    assert "backward" in ended.logs["worker0"]
    assert "BatchNorm" in ended.logs["worker0"]


def test_who_waits_in_vain_for_a_batch_is_given_the_name(jobs: Any, tmp_path: Path) -> None:
    running = jobs.start(
        SCRIPT, "--until", str(tmp_path / "never"), PARAMFLEET_BARRIER_TIMEOUT_S="4"
    )

    assert running.code("worker0") == 1
    said = running.log("worker0")
    assert "TotalIncompleteError: \"BatchNorm 'wide' #1\" of step 0 wasn't whole" in said
    assert "it waits for worker(s) 1" in said


def test_who_dies_while_another_waits_for_its_batch_is_named(jobs: Any, tmp_path: Path) -> None:
    running = jobs.start(SCRIPT, "--until", str(tmp_path / "never"), PARAMFLEET_LEASE_TTL_S="4")
    running.wait_for("worker0", "begins")
    running.wait_for("worker1", "begins")

    running.send("worker1", signal.SIGKILL)

    assert running.code("worker0") == 1
    assert "the job failed: worker 1: " in running.log("worker0")
