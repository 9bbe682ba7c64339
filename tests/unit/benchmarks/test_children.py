"""What is counted of a benchmark's processes, and how they end."""

import asyncio
import gc
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied
from peer.children import cpu_s, start_child

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


def test_a_child_that_was_killed_has_ended_when_the_loop_is_closed(tmp_path: Path) -> None:
    async def start_and_kill() -> int:
        stays = ["-c", "import threading; threading.Event().wait()"]
        child = await start_child("child", stays, read_environment(), tmp_path)
        await child.kill()
        return child.pid

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pid = asyncio.run(start_and_kill())
        gc.collect()

    assert [str(warning.message) for warning in caught] == []
    assert not Path(f"/proc/{pid}").exists()
