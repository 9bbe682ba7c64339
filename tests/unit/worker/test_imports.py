"""What the command loads before it knows what to do: whoever launches a job waits for it."""

import json
import subprocess
import sys

import pytest

from paramfleet_shared.system.processes.keeping import tied

pytestmark = pytest.mark.slow

LISTING = """
import json, sys
import {module}
print(json.dumps(sorted(sys.modules)))
"""


def loaded_by(module: str) -> set[str]:
    """Return the modules that a process has that imports one."""
    command = tied([sys.executable, "-c", LISTING.format(module=module)])
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(json.loads(ended.stdout))


def test_the_command_starts_without_what_only_training_and_tables_need() -> None:
    loaded = loaded_by("paramfleet_worker.__main__")

    assert "paramfleet_worker.app.launch.launcher" in loaded
    assert not loaded & {"aiohttp", "numba", "numpy", "pandas", "ray", "torch"}


def test_an_export_has_its_memory_for_rows() -> None:
    assert "torch" not in loaded_by("paramfleet_worker.app.export.table")
