"""What the command loads before it knows what to do: whoever launches a job waits for it."""

import json
import subprocess
import sys

import pytest

from paramfleet_shared.system.processes.keeping import tied

pytestmark = pytest.mark.slow

LISTING = """
import json, sys
import paramfleet_worker.__main__
print(json.dumps(sorted(sys.modules)))
"""


def test_the_command_starts_without_what_only_training_and_tables_need() -> None:
    ended = subprocess.run(
        tied([sys.executable, "-c", LISTING]), capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(ended.stdout))

    assert "paramfleet_worker.app.launch.launcher" in loaded
    assert not loaded & {"aiohttp", "numba", "numpy", "pandas", "ray", "torch"}
