"""Processes that are started by hand where no registry answers: what they say."""

import subprocess
import sys
from pathlib import Path

import pytest

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_shared.testing.secrets import SECRET

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.forked]

NOWHERE = "redis://127.0.0.1:1/0"

START_S = 60.0
"""Seconds that a process may take to start on a busy machine, and then to give up."""


@pytest.mark.parametrize("role", ["worker", "pserver", "coordinator"])
def test_it_says_that_it_waits_and_ends_with_one_line(role: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import paramfleet as fleet\nfleet.init()\n", encoding="utf-8")
    words = [role, *([str(script)] if role == "worker" else [])]
    environment = {
        **read_environment(),
        "PARAMFLEET_SECRET": SECRET,
        "PARAMFLEET_REDIS": NOWHERE,
        "PARAMFLEET_JOIN_TIMEOUT_S": "4",
    }

    ended = subprocess.run(
        tied([sys.executable, "-m", "paramfleet_worker", *words]),
        env=environment,
        capture_output=True,
        text=True,
        timeout=START_S + LATE_S,
        check=False,
    )

    said = ended.stderr.splitlines()
    assert ended.returncode == 1, said
    waits = [line for line in said if f"waiting up to 4 s for the registry (Redis) at {NOWHERE}"
             in line]  # fmt: skip
    assert len(waits) == 1, said
    assert f"no answer from Redis at {NOWHERE} after 4." in said[-1]
    assert "Traceback" not in ended.stderr
    assert len([line for line in said if "no answer" in line]) == 1
    assert len(said) <= 8, "settings that nobody gave are left out"
