"""gpubox: passes with rows on a device, in whole jobs of real processes."""

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
