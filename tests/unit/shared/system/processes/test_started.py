"""Which variables a process has changed since it was started."""

import subprocess
import sys

import pytest

from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.system.processes.started import changed_variables

SCRIPT = """
import os
from paramfleet_shared.system.processes.started import changed_variables
os.environ["NEW"] = "1"
os.environ["OTHER"] = "2"
del os.environ["GONE"]
print(*sorted(changed_variables(dict(os.environ))))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux keeps the first environment")
def test_new_other_and_missing_variables_are_named() -> None:
    environment = {"OTHER": "1", "GONE": "1", "SAME": "a=b\n"}

    ended = subprocess.run(
        tied([sys.executable, "-c", SCRIPT]),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    assert ended.stdout.split() == ["GONE", "NEW", "OTHER"]


@pytest.mark.skipif(sys.platform == "linux", reason="Linux keeps the first environment")
def test_elsewhere_it_is_not_known() -> None:
    assert changed_variables({}) is None
