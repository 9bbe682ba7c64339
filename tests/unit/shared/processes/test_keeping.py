"""The keeper, which takes a launcher's processes along."""

import os
import signal
import subprocess

import pytest

from paramfleet_shared.processes.keeping import Keeper


@pytest.mark.processes
def test_who_is_on_the_list_is_killed_and_who_is_off_it_is_not() -> None:
    kept, spared = (
        subprocess.Popen(["sleep", "100"], start_new_session=True) for _ in range(2)
    )
    keeper = Keeper()
    for process in (kept, spared):
        keeper.add(process.pid)
    keeper.discard(spared.pid)

    keeper.close()

    assert kept.wait() == -signal.SIGKILL
    assert spared.poll() is None
    spared.kill()
    spared.wait()


@pytest.mark.processes
def test_a_keeper_that_was_killed_is_no_error() -> None:
    keeper = Keeper()
    os.kill(keeper.pid, signal.SIGKILL)
    os.waitid(os.P_PID, keeper.pid, os.WEXITED | os.WNOWAIT)

    keeper.add(1)
    keeper.close()
