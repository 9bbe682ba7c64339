"""A launcher in a process of its own, watched through its pipes and pidfds."""

import os
import re
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_worker.core.topology import Host
from paramfleet_worker.process.ports import PortReservations

PREAMBLE = """
import asyncio, json, os, signal, subprocess, sys, threading
role = "pserver" if os.environ["TRAINING_ROLE"] == "PSERVER" else "worker"
servers = os.environ["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")
here = os.environ["POD_IP"] + ":" + os.environ["PADDLE_PORT"]
rank = servers.index(here) if role == "pserver" else int(os.environ["PADDLE_TRAINER_ID"])
who = f"{role} {rank}"

def say(text):
    print(text, file=sys.stderr, flush=True)

def wait():
    say(f"waiting pid={os.getpid()}")
    threading.Event().wait()

async def opened(pipe):
    say(f"waiting pid={os.getpid()}")
    written = asyncio.Event()
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    asyncio.get_running_loop().add_reader(descriptor, written.set)
    await written.wait()
    asyncio.get_running_loop().remove_reader(descriptor)

def take_part(train=None, index=rank):
    from paramfleet_shared.system.clock import SystemClock
    from paramfleet_shared.settings.config import JobSettings, read_environment, resolve
    from paramfleet_shared.discovery.session import JobSession

    async def live():
        environment = read_environment()
        settings = resolve(JobSettings, section="", arguments={}, environment=environment).value
        endpoint = f"{settings.host}:{os.environ['PADDLE_PORT']}" if role == "pserver" else ""
        session = await JobSession.join(
            settings, role=role, index=index, endpoint=endpoint, admin="", clock=SystemClock()
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(session.run())
                if role == "worker":
                    await session.wait_placement()
                    if train is not None:
                        await train(session)
                    await session.mark_done()
                    say("done")
        finally:
            await session.leave()

    asyncio.run(live())
"""


QUICK_HEARTBEATS = {"PARAMFLEET_LEASE_RENEW_S": "0.2"}
"""How soon members and launchers see what was decided; jobs of tests begin and end by it."""


class Launch:
    """One ``paramfleet launch`` and what it has said so far."""

    def __init__(
        self, command: list[str], *, cwd: Path, environment: dict[str, str] | None = None
    ) -> None:
        self.cwd = cwd
        self._out = (cwd / f"stdout-{os.urandom(4).hex()}").open("w+b")
        self.process = subprocess.Popen(
            tied(command),
            cwd=cwd,
            env={**read_environment(), **QUICK_HEARTBEATS, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self.pids: dict[str, int] = {}
        """By the process's name, or name and a word: ``worker 1``, ``worker 1 child``."""

    def read_until(self, *texts: str) -> None:
        """Read the launcher's stderr until each text has come up in some line."""
        missing = {text for text in texts if text not in self.text}
        while missing:
            line = self._read_line()
            assert line, f"{missing} never came up in:\n" + "".join(self.lines)
            missing = {text for text in missing if text not in line}

    def read_to_end(self) -> int:
        """Read the rest and return the exit code."""
        while self._read_line():
            pass
        return self.process.wait()

    def wait_all(self, *names: str) -> None:
        """Wait until each of these processes said its pid."""
        self.read_until(*(f"[{name}] waiting pid=" for name in names))

    @property
    def text(self) -> str:
        return "".join(self.lines)

    @property
    def said(self) -> list[str]:
        """Return the launcher's own lines."""
        return [
            line.removeprefix("[launcher] ").rstrip("\n")
            for line in self.lines
            if line.startswith("[launcher] ")
        ]

    @property
    def stdout(self) -> str:
        self._out.seek(0)
        return self._out.read().decode()

    def survivors(self, within_s: float) -> list[int]:
        """Return the processes that are still there after ``within_s``."""
        return [pid for pid in self.pids.values() if not ends(pid, within_s)]

    def close(self) -> None:
        for pid in (self.process.pid, *self.pids.values()):
            if not ends(pid, 0.0):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()
        self._out.close()

    def _read_line(self) -> str:
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        self.lines.append(line)
        told = re.fullmatch(r"\[(?!launcher)(.+)\] (\w+) pid=(\d+)\n", line)
        if told is not None:
            self.pids[f"{told[1]} {told[2]}".removesuffix(" waiting")] = int(told[3])
        return line


def ends(pid: int, within_s: float) -> bool:
    """Wait for the end of a process that needn't be our child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], within_s)[0])
    finally:
        os.close(descriptor)


LaunchScript = Callable[..., Launch]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[LaunchScript]:
    """Return a function that launches a script given as text, after PREAMBLE."""
    started: list[Launch] = []

    def run(
        body: str,
        *options: str,
        environment: dict[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        words: tuple[str, ...] = ("--epochs=3",),
    ) -> Launch:
        script = tmp_path / "train.py"
        script.write_text(PREAMBLE + textwrap.dedent(body))
        command = [*prefix, sys.executable, "-m", "paramfleet_worker", "launch", *options]
        command += [str(script), *words]
        one = Launch(command, cwd=tmp_path, environment=environment)
        started.append(one)
        return one

    yield run
    for one in started:
        one.close()


@pytest.fixture
def preamble() -> str:
    """Return what every test's script begins with."""
    return PREAMBLE


@pytest.fixture
def free_port() -> Iterator[Callable[..., int]]:
    """Return a function that gives ports nobody else will be given."""
    with PortReservations() as reservations:
        yield lambda host="127.0.0.1": reservations.reserve(Host(host)).port
