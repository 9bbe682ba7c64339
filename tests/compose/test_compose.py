"""The cluster of ``deploy/compose`` on a real engine."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_ENGINE = 3
"""How ``run.sh`` ends where no engine can be had."""

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a Docker engine")
@pytest.mark.skipif(shutil.which("apt-get") is None, reason="the engine is Debian's")
def test_a_cluster_trains_although_it_is_hurt() -> None:
    done = subprocess.run(
        ["bash", "tests/compose/run.sh", "--mode=geo", "--workers=4", "--servers=2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == NO_ENGINE:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr[-8000:]

    told = json.loads(done.stdout.splitlines()[-1])

    assert (told["workers"], told["servers"], told["mode"]) == (4, 2, "geo")
    assert told["test_auc"] > 0.78
