"""How processes are called in lists of processes."""

import subprocess
import sys

import pytest

from paramfleet_shared.system.processes.keeping import tied

NAMES = """
import threading
from pathlib import Path
from paramfleet_shared.system.process_names import name_process
for given in (("worker", 12), ("coordinator",), ("pserver", 123456)):
    thread = threading.Thread(target=name_process, args=given)  # as the communicator's
    thread.start()
    thread.join()
    print(Path("/proc/self/task", str(threading.main_thread().native_id), "comm").read_text())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has such names")
def test_a_process_is_called_by_its_role_whichever_thread_says_so() -> None:
    done = subprocess.run(
        tied([sys.executable, "-c", NAMES]), capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == ["pf-worker-12", "pf-coordinator", "pf-pserver-1234"]
