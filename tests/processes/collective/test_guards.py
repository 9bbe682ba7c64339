"""All workers of a collective job leave out a step in which one of them is out of range."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from paramfleet_shared.system.processes.keeping import tied

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.forked]

SCRIPT = Path(__file__).parent / "scripts" / "guarded.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def test_a_step_that_is_outside_in_one_worker_is_skipped_by_all() -> None:
    done = subprocess.run(
        tied([*TORCHRUN, "--nproc_per_node=2", str(SCRIPT)]),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr

    first, second = json.loads(done.stdout.splitlines()[-1])

    assert (first["skipped"], second["skipped"]) == (2, 2)
    assert first["outside"] == 2, "by all-reduce its gradient is NaN, too"
    assert second["outside"] == 1
    assert second["last"].startswith("step 3 skipped: the loss is nan")
    assert re.fullmatch(
        r"step 5 skipped: the loss is 100\d\S*, and must be at most 100", first["last"]
    )
    assert np.isfinite(first["values"]).all()
    assert np.isfinite(second["values"]).all()
    assert first["values"][:36] == second["values"][:36], "the parameters"
    assert first["steps"] == second["steps"] == 6
