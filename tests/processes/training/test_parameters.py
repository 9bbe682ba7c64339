"""What scripts do with parameters has torch's numbers: unused, changed, thawed, cycled."""

from pathlib import Path
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
    ("thawed_alone", "adam"),
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


@pytest.mark.parametrize(
    ("what", "optimizer", "saved_in", "loaded_in"),
    [
        ("alternate", "adam", "sync", "local"),
        ("alternate", "damped", "gpubox", "sync"),
        ("alternate", "adam", "local", "sync"),
        ("clamped", "adam", "sync", "sync"),
        ("thawed", "adam", "sync", "async"),
    ],
)
def test_a_checkpoint_has_the_steps_of_each_parameter_and_what_was_changed_last(
    jobs: Any, tmp_path: Path, what: str, optimizer: str, saved_in: str, loaded_in: str
) -> None:
    folder = str(tmp_path / "checkpoint")

    def run(mode: str, *more: str) -> dict[str, Any]:
        args = ["--what", what, "--optimizer", optimizer, "--mode", mode, *more]
        if mode == "local":
            alone: dict[str, Any] = jobs.local(SCRIPT, *args)
            return alone
        (result,) = jobs.run(
            SCRIPT, *args, workers=1, servers=2, PARAMFLEET_CHECKPOINT_DIRS=str(tmp_path)
        ).results
        of_job: dict[str, Any] = result
        return of_job

    run(saved_in, "--steps", "6", "--save", folder)
    result = run(loaded_in, "--steps", "4", "--load", folder, "--done", "6")

    assert result["differ"] <= 1e-5
