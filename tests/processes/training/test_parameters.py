"""What scripts do with parameters has torch's numbers: unused, changed, thawed, cycled."""

from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_parameters.py"
IN_SYNC = [
    ("alternate", "adam"),
    ("alternate", "damped"),
    ("unused", "adam"),
    ("clamped", "adam"),
    ("loaded", "momentum"),
    ("thawed", "adam"),
    ("frozen", "momentum"),
    ("onecycle", "adam"),
    ("cyclic", "momentum"),
    ("decayed", "adam"),
    ("zeros", "adam"),
]
"""Idioms, each with an optimizer that it matters to."""


@pytest.mark.parametrize(("what", "optimizer"), IN_SYNC)
def test_sync_has_the_numbers_of_one_torch_process(
    jobs: Any, what: str, optimizer: str
) -> None:
    args = ["--what", what, "--optimizer", optimizer]

    for result in jobs.run(SCRIPT, *args, workers=2, servers=2).results:
        assert result["differ"] <= 1e-5
        assert result["end"] <= 1e-5


@pytest.mark.parametrize("mode", ["async", "geo", "gpubox"])
@pytest.mark.parametrize("what", ["alternate", "clamped", "thawed", "onecycle"])
def test_one_worker_of_every_mode_has_them(jobs: Any, mode: str, what: str) -> None:
    (result,) = jobs.run(SCRIPT, "--mode", mode, "--what", what, workers=1).results

    assert result["differ"] <= 1e-5
    assert result["end"] <= 1e-5


@pytest.mark.parametrize("what", ["alternate", "unused", "clamped"])
def test_workers_that_step_rows_on_devices_have_them(jobs: Any, what: str) -> None:
    for result in jobs.run(SCRIPT, "--mode", "gpubox", "--what", what, workers=2).results:
        assert result["end"] <= 1e-5
