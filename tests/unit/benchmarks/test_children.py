"""What is counted of a benchmark's processes."""

import os
import subprocess
import sys
import time

import pytest

from paramfleet_shared.system.processes.keeping import tied
from peer.children import cpu_s

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the clocks are Linux's")


def test_processor_time_is_finer_than_a_hundredth_of_a_second() -> None:
    """A burst of a fast system takes little longer than that."""
    used = set()
    begun = time.process_time()
    while time.process_time() - begun < 0.02:
        used.add(cpu_s(os.getpid()))

    assert len(used) > 10
    assert min(used) == pytest.approx(begun, abs=0.01)


def test_threads_that_have_ended_are_counted_too() -> None:
    program = """
import threading, time
def spin():
    begun = time.thread_time()
    while time.thread_time() - begun < 0.2: pass
thread = threading.Thread(target=spin)
thread.start(); thread.join()
print("ended", flush=True)
input()
"""
    with subprocess.Popen(
        tied([sys.executable, "-c", program]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ended\n"

        assert cpu_s(process.pid) >= 0.2

        process.communicate("\n")


def test_a_process_that_is_gone_has_used_nothing() -> None:
    process = subprocess.Popen(tied([sys.executable, "-c", ""]))
    process.wait()

    assert cpu_s(process.pid) == 0.0
