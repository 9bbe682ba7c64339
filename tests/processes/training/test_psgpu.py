"""Passes by Paddle's names, in whole jobs of real processes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_psgpu.py"
DAYS, LINES = 3, 64


def test_days_of_data_train_what_sync_does_to_the_bit(jobs: Any, tmp_path: Path) -> None:
    dice = np.random.default_rng(3)
    data = tmp_path / "days"
    data.mkdir()
    for day in range(DAYS):
        words = dice.integers(1, 90, (LINES, 3)).tolist()
        lines = [f"1 {a % 2} 3 {a} {b} {c}\n" for a, b, c in words]
        (data / f"day-{day}").write_text("".join(lines))
    one = {"workers": 1, "servers": 2}

    (gpubox,) = jobs.run(SCRIPT, "--data", str(data), **one).results
    (sync,) = jobs.run(SCRIPT, "--data", str(data), "--mode=sync", **one).results

    assert (gpubox["losses"], gpubox["rows"]) == (sync["losses"], sync["rows"])
    assert [facts["date"] for facts in gpubox["facts"]] == [
        "2026-11-01",
        "2026-11-02",
        "2026-11-03",
    ]
    assert all(facts["written"] > 0 for facts in gpubox["facts"])
    assert gpubox["scores"] == DAYS * LINES
