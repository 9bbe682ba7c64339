"""Threads that take the time that others leave."""

import os
import sys
import threading

import pytest

from paramfleet_shared.system.threads import NICENESS, background_threads


@pytest.mark.skipif(
    sys.platform != "linux", reason="a thread has its own priority on Linux only"
)
def test_background_threads_stand_back_and_no_other_does() -> None:
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = priority()
    with background_threads(2, "test") as threads:
        found = threads.submit(priority).result()

    assert found == max(before, NICENESS)
    assert priority() == before
