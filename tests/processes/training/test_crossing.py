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


@pytest.mark.parametrize("optimizer", ["adagrad", "adam", "rowwise_adagrad", "ftrl"])
@pytest.mark.parametrize("dense", [False, True], ids=["rows", "dense"])
def test_every_mode_loads_what_every_mode_saved(
    jobs: Any, tmp_path: Path, optimizer: str, *, dense: bool
) -> None:
    modes = MODES[dense]
    common = ["--optimizer", optimizer, *(["--dense"] if dense else [])]
    folders = {mode: str(tmp_path / mode) for mode in modes}

    def run_all(args: dict[str, list[str]]) -> dict[str, dict[str, list[float]]]:
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
    losses = run_all({mode: list(folders.values()) for mode in modes})

    alone = losses["alone"]
    exact = [mode for mode in modes if mode in EXACT]
    for saver, folder in folders.items():
        for loader in modes:
            assert losses[loader][folder][0] == pytest.approx(alone[folder][0], abs=1e-5)
        goes_on = {loader: losses[loader][folder][1] for loader in exact}
        assert goes_on == pytest.approx(dict.fromkeys(goes_on, alone[folder][1]), abs=1e-5)
        if saver != LOCAL and LOCAL in modes:
            assert abs(losses[LOCAL][folder][1] - alone[folder][1]) > 1e-4
    # With one worker all train the same, and go on the same from wherever it was saved.
    for saver in exact:
        assert alone[folders[saver]] == pytest.approx(alone[folders["alone"]], abs=1e-4)
    if LOCAL in modes:  # what begins anew does so alike everywhere
        for saver in modes:
            assert losses[LOCAL][folders[saver]][1] == pytest.approx(
                alone[folders[LOCAL]][1], abs=1e-4
            )
