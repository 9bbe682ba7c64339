"""gpubox: passes with rows on a device, in whole jobs of real processes."""

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_passes.py"
OPTIMIZERS = ["sgd", "momentum", "adagrad", "rowwise", "adam", "adamw", "ftrl"]


def result_of(jobs: Any, folder: Path, *args: str, servers: int = 2) -> dict[str, Any]:
    """Return what one worker prints at the end of a job."""
    more = [*args, "--save", str(folder / "checkpoint")]
    (result,) = jobs.run(SCRIPT, *more, workers=1, servers=servers).results
    found: dict[str, Any] = result
    return found


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_worker_trains_what_sync_does_to_the_bit(
    jobs: Any, tmp_path: Path, optimizer: str
) -> None:
    sync = result_of(jobs, tmp_path / "sync", "--mode=sync", "--optimizer", optimizer)

    whole = result_of(jobs, tmp_path / "whole", "--optimizer", optimizer)
    split = result_of(jobs, tmp_path / "split", "--optimizer", optimizer, "--budget=4000")

    assert whole == sync
    assert split == sync


def passes_of(log: str) -> list[dict[str, float]]:
    """Return the facts of each pass that a worker has logged."""
    lines = [line for line in log.splitlines() if line.startswith("pass ")]
    return [json.loads(line.removeprefix("pass ")) for line in lines]


def run_with_passes(
    jobs: Any, folder: Path, *args: str
) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """Return what one worker prints at the end of a job, and the facts of its passes."""
    more = [*args, "--save", str(folder / "checkpoint")]
    ended = jobs.run(SCRIPT, *more, workers=1, servers=2)
    (result,) = ended.results
    return result, passes_of(ended.logs["worker0"])


def test_a_table_of_ten_times_the_budget_is_trained_in_passes_that_keep_it(
    jobs: Any, tmp_path: Path
) -> None:
    more = ("--ids=3000", "--steps=40", "--epochs=1")
    whole, (one,) = run_with_passes(jobs, tmp_path / "whole", *more)
    budget = int(one["device_bytes"]) // 10

    split, passes = run_with_passes(jobs, tmp_path / "split", *more, f"--budget={budget}")

    assert split == whole
    assert len(passes) >= 10
    assert max(each["device_bytes"] for each in passes) <= budget


def test_rows_that_two_passes_share_stay_and_others_come_beside_the_training(
    jobs: Any, tmp_path: Path
) -> None:
    more = ("--shared", "--steps=12", "--epochs=1")
    whole, _ = run_with_passes(jobs, tmp_path / "whole", *more)

    split, passes = run_with_passes(jobs, tmp_path / "split", *more, "--budget=2400")

    assert split == whole
    assert len(passes) > 2
    assert passes[0]["hit_share"] == 0
    assert all(0.2 < each["hit_share"] < 0.8 for each in passes[1:]), passes
