"""Jobs whose pservers keep rows in 16 bits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_tiny.py"


@pytest.mark.parametrize(("mode", "steps"), [("async", 150), ("geo", 100)])
def test_a_job_learns_and_its_checkpoint_keeps_every_number(
    jobs: Any, mode: str, steps: int, tmp_path: Path
) -> None:
    folder = str(tmp_path / "saved")
    args = ["--mode", mode, "--storage", "bfloat16"]

    first, second = jobs.run(SCRIPT, *args, "--steps", str(steps), "--save", folder).results
    again = jobs.run(
        SCRIPT, *args, "--steps", "0", "--server_load", folder, servers=3, workers=1
    ).results[0]

    assert np.mean(first["losses"][-20:]) < np.mean(first["losses"][:20]) - 0.01
    assert first["rows"] == second["rows"] == again["rows"]
    bits = np.array(first["rows"], np.float32).view(np.uint32)
    assert not (bits & 0xFFFF).any()


def test_what_one_process_trains_in_float32_goes_on_in_16_bits(
    jobs: Any, tmp_path: Path
) -> None:
    folder = str(tmp_path / "saved")
    args = ["--storage", "float16"]

    alone = jobs.local(SCRIPT, *args, "--steps", "10", "--save", folder)
    (served,) = jobs.run(SCRIPT, *args, "--steps", "0", "--load", folder, workers=1).results

    kept = np.array(alone["rows"], np.float32).astype(np.float16).astype(np.float32)
    assert (kept != np.array(alone["rows"], np.float32)).any()
    np.testing.assert_array_equal(np.array(served["rows"], np.float32), kept)
