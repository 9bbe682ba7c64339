"""gpubox: passes with rows on a device, in whole jobs of real processes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_passes.py"
OPTIMIZERS = ["sgd", "momentum", "adagrad", "rowwise", "adam", "adamw", "ftrl"]


def result_of(
    jobs: Any, folder: Path, *args: str, workers: int = 1, servers: int = 2
) -> dict[str, Any]:
    """Return what worker 0 prints at the end of a job."""
    more = [*args, "--save", str(folder / "checkpoint")]
    found: dict[str, Any] = jobs.run(SCRIPT, *more, workers=workers, servers=servers).results[0]
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


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("workers", [2, 4])
def test_several_workers_train_what_one_does(
    jobs: Any, tmp_path: Path, workers: int, optimizer: str
) -> None:
    args = ["--optimizer", optimizer]
    alone = result_of(jobs, tmp_path / "alone", *args)

    whole = result_of(jobs, tmp_path / "whole", *args, workers=workers)
    split = result_of(jobs, tmp_path / "split", *args, "--budget=2500", workers=workers)

    assert_near(whole, alone)
    assert_near(split, alone)


@pytest.mark.parametrize("more", [["--fewer=5"], ["--leaves=7"]])
def test_the_others_go_on_when_a_worker_has_no_batch_any_more(
    jobs: Any, tmp_path: Path, more: list[str]
) -> None:
    alone = result_of(jobs, tmp_path / "alone", "--optimizer=momentum", "--halved=5")

    more = [*more, "--optimizer=momentum", "--budget=3500"]
    together = result_of(jobs, tmp_path / "together", *more, workers=2)

    assert_near(together, alone)


def test_a_worker_that_has_finished_goes_along_with_the_others(
    jobs: Any, tmp_path: Path
) -> None:
    args = ["--optimizer=momentum", "--fewer=12", "--halved=12", "--epochs=3"]
    alone = result_of(jobs, tmp_path / "alone", *args)

    together = result_of(jobs, tmp_path / "together", *args, "--shorter=2", workers=2)

    assert_near(together, alone)


def assert_near(together: dict[str, Any], alone: dict[str, Any]) -> None:
    """Pass if rows and dense values are equal but for the order of sums."""
    np.testing.assert_allclose(together["dense"], alone["dense"], rtol=0, atol=1e-6)
    for name, (ids, rows) in alone["values"].items():
        found_ids, found_rows = together["values"][name]
        assert found_ids == ids
        np.testing.assert_allclose(found_rows, rows, rtol=0, atol=1e-6)
