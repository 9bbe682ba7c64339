"""The example that trains online, small: the served model is the job's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paramfleet_shared.system.processes.keeping import tied

LIVE = Path(__file__).parents[2] / "examples" / "online" / "live.py"

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.forked]


def test_a_short_training_is_served_meanwhile(tmp_path: Path) -> None:
    words = ["--days", "6", "--retrained", "1", "--log_dir", str(tmp_path / "log")]
    run = subprocess.run(
        tied([sys.executable, str(LIVE), *words]),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )

    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout.splitlines()[-1])
    assert result["served_is_equal"]
    assert result["lookup_errors"] == 0
    assert result["deltas"] > 1
    assert result["retrained_days"] == [6]
    assert 0.5 < result["next_day_auc"] < 1
    assert 0.5 < result["retrained_auc"] < 1
    assert "day 6/6" in run.stderr
