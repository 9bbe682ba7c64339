"""A checkpoint of any mode loads in any mode, with its states where the rule is the same."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "load_many.py"
MODES = {False: ("alone", "sync", "async", "geo"), True: ("alone", "sync", "localsgd")}
EXACT = ("alone", "sync", "geo")
"""Modes whose checkpoints hold states, and that go on with them; async does, too, later."""
LOCAL = "localsgd"
"""Its checkpoints hold no states of the optimizer, and every worker begins with new ones."""


OPTIMIZERS = ("adagrad", "adam", "rowwise_adagrad", "ftrl")
TOGETHER = pytest.param(OPTIMIZERS, False, id="rows")
APART = [pytest.param((name,), True, id=f"dense-{name}") for name in OPTIMIZERS]
"""LocalSGD keeps the dense parts of all optimizers in one table, sync those of each in one."""

Losses = dict[str, dict[str, list[float]]]
"""By folder and optimizer: with what was loaded, and after a step."""


@pytest.mark.parametrize(("optimizers", "dense"), [TOGETHER, *APART])
def test_every_mode_loads_what_every_mode_saved(
    jobs: Any, tmp_path: Path, optimizers: tuple[str, ...], *, dense: bool
) -> None:
    modes = MODES[dense]
    common = ["--optimizers", *optimizers, *(["--dense"] if dense else [])]
    folders = {mode: str(tmp_path / mode) for mode in modes}

    def run_all(args: dict[str, list[str]]) -> dict[str, Losses]:
        """Run the script in every mode, the jobs of all at the same time."""
        sizes = {"workers": 1, "servers": 2}
        running = {
            mode: jobs.start(SCRIPT, *common, "--mode", mode, *args[mode], **sizes)
            for mode in modes
            if mode != "alone"
        }
        found = {"alone": jobs.local(SCRIPT, *common, *args["alone"])}
        for mode, job in running.items():
            (found[mode],) = job.end().results
        return found

    run_all({mode: ["--steps", "12", "--save", folders[mode]] for mode in modes})
    losses = run_all({mode: ["--folders", *folders.values()] for mode in modes})

    for optimizer in optimizers:
        _check(losses, folders, optimizer)


def _check(losses: dict[str, Losses], folders: dict[str, str], optimizer: str) -> None:
    """See that an optimizer's model goes on the same in each mode, whichever had saved it."""
    of = {
        mode: {folder: each[optimizer] for folder, each in found.items()}
        for mode, found in losses.items()
    }
    alone = of["alone"]
    exact = [mode for mode in of if mode in EXACT]
    for saver, folder in folders.items():
        for found in of.values():
            assert found[folder][0] == pytest.approx(alone[folder][0], abs=1e-5), optimizer
        goes_on = {loader: of[loader][folder][1] for loader in exact}
        assert goes_on == pytest.approx(dict.fromkeys(goes_on, alone[folder][1]), abs=1e-5)
        if saver != LOCAL and LOCAL in of:
            assert abs(of[LOCAL][folder][1] - alone[folder][1]) > 1e-4, optimizer
    # With one worker all train the same, and go on the same from wherever it was saved.
    for saver in exact:
        assert alone[folders[saver]] == pytest.approx(alone[folders["alone"]], abs=1e-4)
    if LOCAL in of:  # what begins anew does so alike everywhere
        for saver in of:
            assert of[LOCAL][folders[saver]][1] == pytest.approx(
                alone[folders[LOCAL]][1], abs=1e-4
            )
