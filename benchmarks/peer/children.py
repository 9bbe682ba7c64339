"""Processes of a benchmark: started with their log, asked with a deadline, ended for sure."""

import asyncio
import contextlib
import ctypes
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cores import Cores, pinned
from paramfleet_shared.system.processes.keeping import tied

__all__ = [
    "ANSWER_TIMEOUT_S",
    "Child",
    "ChildFailedError",
    "cpu_s",
    "disk_bytes",
    "num_switches",
    "start_child",
]

ANSWER_TIMEOUT_S = 180.0
"""Longest wait for a client's answer to one command; on a busy machine it may start so long."""

END_TIMEOUT_S = 15.0
"""Longest wait for a process to end by itself."""

_FOLDER = Path(__file__).parents[1]
_MAX_LINE_BYTES = 1 << 24


class ChildFailedError(Exception):
    """A process of the benchmark ended or went silent; the message has its last words."""


class Child:
    """One process that talks JSON lines.

    Args:
        name: For errors.
        process: With pipes for its input and output.
        log: Where its standard error goes.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self._name = name
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    async def ask(self, do: str, **arguments: Any) -> Any:
        """Send a command, and return its answer.

        Raises:
            ChildFailedError: if the process ends or doesn't answer in time.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None, "opened as a pipe"
        assert stdout is not None, "opened as a pipe"
        stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await stdin.drain()
                line = await stdout.readline()
        except TimeoutError:
            raise self._failure(do, f"no answer in {ANSWER_TIMEOUT_S:g} s") from None
        except ConnectionError:
            line = b""
        if not line:
            raise self._failure(do, "it ended")
        return json.loads(line)

    async def end(self) -> None:
        """Close its input, which ends it; use force when it stays."""
        stdin = self._process.stdin
        assert stdin is not None, "opened as a pipe"
        stdin.close()
        for insist in (self._process.terminate, self._process.kill):
            try:
                async with asyncio.timeout(END_TIMEOUT_S):
                    await self._process.wait()
            except TimeoutError:
                insist()
        await self._process.wait()

    async def kill(self) -> None:
        """End it at once, if it hasn't ended; return when its pipes are closed, too."""
        assert self._process.stdout is not None, "opened as a pipe"
        if self._process.returncode is None:
            self._process.kill()
        await self._process.stdout.read()
        await self._process.wait()

    def _failure(self, command: str, reason: str) -> ChildFailedError:
        words = self._log.read_text(errors="replace")[-2000:]
        return ChildFailedError(f"{self._name}, {command}: {reason}; its last words:\n{words}")


async def start_child(
    name: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    logs: Path,
    cores: Cores = (),
) -> Child:
    """Start ``python ARGUMENTS`` in the folder of the benchmarks; it ends with its starter.

    Args:
        name: Of its log, and for errors.
        arguments: Of the interpreter.
        environment: All of it.
        logs: Folder of the log.
        cores: Where it runs; without any wherever the kernel puts it.
    """
    log = logs / f"{name}.log"
    with log.open("wb") as words:
        process = await asyncio.create_subprocess_exec(
            *tied(pinned([sys.executable, *arguments], cores)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=words,
            cwd=_FOLDER,
            env=environment,
            limit=_MAX_LINE_BYTES,
        )
    return Child(name, process, log)


def cpu_s(pid: int) -> float:
    """Return the processor time that all threads of a process have used so far.

    Its clock counts nanoseconds, where /proc counts hundredths of a second: longer than some
    bursts take. 0 for a process that is gone, and where the system has no such clocks.
    """
    clock_of = getattr(ctypes.CDLL(None), "clock_getcpuclockid", None)
    clock = ctypes.c_int()
    if clock_of is None or clock_of(pid, ctypes.byref(clock)):
        return 0.0
    try:
        return time.clock_gettime(clock.value)
    except OSError:  # it has ended meanwhile
        return 0.0


def disk_bytes(pid: int) -> int:
    """Return how many bytes a process has written to files on disks; 0 where nobody counts."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("write_bytes:")), 0)


def num_switches(pid: int) -> int:
    """Return how often a process's threads have stopped to wait; 0 where there is no /proc."""
    count = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile
            _, _, after = status.read_text().partition("\nvoluntary_ctxt_switches:")
            count += int(after.split()[0])
    return count
