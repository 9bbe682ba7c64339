"""The keeper and the tether, which take a starter's processes along."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paramfleet_shared.system.processes.keeping import Keeper, behind_gate, tied

LINUX_ONLY = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
WITHIN_S = 10.0


def has_ended(descriptor: int, *, within_s: float) -> bool:
    """Return whether the process of a pidfd ends in time; the descriptor is closed."""
    try:
        return bool(select.select([descriptor], [], [], within_s)[0])
    finally:
        os.close(descriptor)


@pytest.mark.processes
def test_who_is_on_the_list_is_killed_and_who_is_off_it_is_not() -> None:
    command = tied(["sleep", "100"])
    kept, spared = (subprocess.Popen(command, start_new_session=True) for _ in range(2))
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


STARTS = """
import subprocess, sys, threading
from paramfleet_shared.system.processes.keeping import Keeper, behind_gate, tied

class Starter:
    def __init__(self, how):
        command = ["sh", "-c", "echo up; exec sleep 100"]
        gate = how == "gate"
        self.process = subprocess.Popen(
            behind_gate(command) if gate else tied(command),
            stdin=subprocess.PIPE if gate else subprocess.DEVNULL,
            stdout=subprocess.PIPE, start_new_session=True,
        )
        self.keeper = Keeper()
        self.keeper.add(self.process.pid)
        if gate:
            self.process.stdin.write(b"\\n")
            self.process.stdin.flush()
        assert self.process.stdout.readline() == b"up\\n"

how, where = sys.argv[1:]
started = []
if where == "thread":
    thread = threading.Thread(target=lambda: started.append(Starter(how)))
    thread.start()
    thread.join()
else:
    started.append(Starter(how))
print(started[0].process.pid, started[0].keeper.pid, flush=True)
sys.stdin.read()
"""


class Starter:
    """A process that has started another one, with a keeper."""

    def __init__(self, how: str, *, where: str = "main") -> None:
        self.process = subprocess.Popen(
            tied([sys.executable, "-c", STARTS, how, where]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        child, keeper = map(int, self.process.stdout.readline().split())
        self.child, self.keeper = os.pidfd_open(child), os.pidfd_open(keeper)

    def kill_keeper(self) -> bool:
        signal.pidfd_send_signal(self.keeper, signal.SIGKILL)
        return has_ended(self.keeper, within_s=WITHIN_S)

    def kill(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@LINUX_ONLY
@pytest.mark.processes
@pytest.mark.parametrize("how", ["gate", "tied"])
def test_nothing_outlives_a_starter_and_its_keeper_that_were_killed(how: str) -> None:
    starter = Starter(how)
    assert starter.kill_keeper()
    assert not select.select([starter.child], [], [], 0.3)[0], "the keeper's loss is no end"

    starter.kill()

    assert has_ended(starter.child, within_s=WITHIN_S)


@pytest.mark.processes
@pytest.mark.parametrize("how", ["gate", "tied"])
def test_what_a_thread_has_started_outlives_the_thread_and_not_the_process(how: str) -> None:
    starter = Starter(how, where="thread")
    assert not select.select([starter.child], [], [], 0.3)[0], "the thread's end is none"

    starter.kill()

    assert has_ended(starter.child, within_s=WITHIN_S)
    os.close(starter.keeper)


@LINUX_ONLY
@pytest.mark.processes
def test_a_command_whose_starter_is_gone_already_never_starts(tmp_path: Path) -> None:
    never = tmp_path / "never"
    words = tied(["touch", str(never)])
    gone = subprocess.Popen(tied(["true"]))
    gone.wait()
    words[words.index(str(os.getpid()))] = str(gone.pid)

    ended = subprocess.run(words, check=False)

    assert ended.returncode == 1
    assert not never.exists()


@pytest.mark.processes
def test_a_gate_whose_starter_has_closed_the_pipe_never_opens(tmp_path: Path) -> None:
    never = tmp_path / "never"

    ended = subprocess.run(behind_gate(["touch", str(never)]), input=b"", check=False)

    assert ended.returncode == 1
    assert not never.exists()


def test_a_gate_at_another_descriptor_leaves_the_standard_input_alone() -> None:
    waiting, gate = os.pipe()
    with subprocess.Popen(
        behind_gate(["cat"], gate=waiting),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(waiting,),
    ) as process:
        os.close(waiting)
        os.write(gate, b"\n")
        os.close(gate)

        out, _ = process.communicate(b"all of it")
    assert out == b"all of it"


def test_behind_a_gate_the_standard_input_is_there_and_empty() -> None:
    says = "import os; print(os.read(0, 1))"
    process = subprocess.Popen(
        behind_gate([sys.executable, "-c", says]), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )

    printed, _ = process.communicate(b"x")

    assert printed == b"b''\n"


def test_a_command_has_the_signals_that_programs_expect() -> None:
    command = tied(["sh", "-c", "yes | head -1"])

    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert (done.stdout, done.stderr) == ("y\n", "")
