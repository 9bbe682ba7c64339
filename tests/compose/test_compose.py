"""The cluster of ``deploy/compose`` on a real engine."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from paramfleet_shared.system.processes.keeping import Keeper, behind_gate

ROOT = Path(__file__).parents[2]
NO_ENGINE = 3
"""How ``run.sh`` ends where no engine can be had."""

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(3600),  # each wait has a bound of its own, without progress
]


def run_kept(command: list[str]) -> tuple[int, str, str]:
    """Run a command whose process group ends with us; return its exit code and its output.

    The engine's namespaces end with the group, which is more than a tie to one process does.
    """
    process = subprocess.Popen(
        behind_gate(command),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    keeper = Keeper()
    keeper.add(process.pid)
    try:
        stdout, stderr = process.communicate("\n")
        keeper.discard(process.pid)
    finally:
        keeper.close()
    return process.returncode, stdout, stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a Docker engine")
@pytest.mark.skipif(shutil.which("apt-get") is None, reason="the engine is Debian's")
def test_a_cluster_trains_although_it_is_hurt() -> None:
    code, stdout, stderr = run_kept(
        ["bash", "tests/compose/run.sh", "--mode=geo", "--workers=4", "--servers=2"]
    )
    if code == NO_ENGINE:
        pytest.skip(stderr.splitlines()[-1])
    progress = [line for line in stderr.splitlines() if "cluster: " in line]
    assert code == 0, "\n".join([*progress, stderr[-8000:]])

    told = json.loads(stdout.splitlines()[-1])

    assert (told["workers"], told["servers"], told["mode"]) == (4, 2, "geo")
    assert told["test_auc"] > 0.78
