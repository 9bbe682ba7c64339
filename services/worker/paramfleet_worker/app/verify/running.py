"""Carries out the plan of one run: a launched job, what is killed from outside, and the end."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paramfleet_shared.net.rpc.planned_faults import VARIABLE as FAULTS
from paramfleet_shared.settings.failpoints import DEFECTS_VARIABLE, MARK
from paramfleet_shared.settings.failpoints import VARIABLE as FAILPOINTS
from paramfleet_shared.system.clock import Clock
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_worker.app.verify import ledger
from paramfleet_worker.app.verify.checking import check, recovery_times
from paramfleet_worker.app.verify.plan import NUM_SERVERS, NUM_WORKERS, Kill, Plan

__all__ = ["Ran", "run_plan"]

LIMIT_S = 150.0
"""After which a run that hasn't ended is a failure."""

PAUSE_S = 0.4
"""How long a process stands still that a failpoint has stopped."""

_PID = re.compile(r"\[(\w+) (\d+)\] ledger pid=(\d+)\n?")
_STEP = re.compile(r"\[worker 0\] ledger step (\d+)\.\n?")
_ACTED = re.compile(rf"\[(\w+) (\d+)\] {MARK} .* (kill|stop) (\d+\.\d+)\n?")

_RESTARTS = 20
"""More than any plan needs."""

_QUICK = {
    "PARAMFLEET_LEASE_RENEW_S": "0.2",
    "PARAMFLEET_CALL_TIMEOUT_S": "30",
    "PARAMFLEET_BARRIER_TIMEOUT_S": "90",
    "PARAMFLEET_PSERVER__LOG_SEGMENT_BYTES": str(1 << 16),
}
"""Settings by which jobs begin, and errors and snapshots come, soon."""


@dataclass(slots=True)
class Ran:
    """What became of one run."""

    plan: Plan
    folder: Path
    acked: int = 0
    lost: int = 0
    doubled: int = 0
    kills: list[float] = field(default_factory=list)
    """When processes were killed by us."""
    recovery_s: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class _Job:
    """A launched job, and who is killed when in it. Belongs to one event loop.

    Args:
        plan: What it runs.
        launcher: Its process.
        clock: Time.
    """

    def __init__(self, plan: Plan, launcher: asyncio.subprocess.Process, clock: Clock) -> None:
        self.kills: list[float] = []
        self._launcher = launcher
        self._clock = clock
        self._waiting = list(plan.kills)
        self._processes: dict[str, int] = {}
        self._pauses: set[asyncio.Task[None]] = set()

    async def follow(self) -> int:
        """Read what the job says to its end, and act on it; return its exit code."""
        assert self._launcher.stderr is not None, "it was asked for"
        try:
            async for line in self._launcher.stderr:
                self._take(line.decode(errors="replace"))
            return await self._launcher.wait()
        finally:
            for handle in self._processes.values():
                os.close(handle)
            for pause in self._pauses:
                pause.cancel()

    def _take(self, line: str) -> None:
        if found := _STEP.fullmatch(line):
            while self._waiting and self._waiting[0].step <= int(found[1]):
                self._kill(self._waiting.pop(0))
        elif found := _PID.fullmatch(line):
            self._know(f"{found[1]}-{found[2]}", int(found[3]))
        elif found := _ACTED.fullmatch(line):
            if found[3] == "kill":
                self.kills.append(float(found[4]))
            else:
                name = f"{found[1]}-{found[2]}"
                pause = asyncio.get_running_loop().create_task(self._continue(name))
                self._pauses.add(pause)

    def _know(self, name: str, pid: int) -> None:
        """Have a handle of a process, which can't become another's."""
        with contextlib.suppress(ProcessLookupError):
            former = self._processes.get(name)
            self._processes[name] = os.pidfd_open(pid)
            if former is not None:
                os.close(former)

    def _kill(self, kill: Kill) -> None:
        if kill.process == "redis-0":
            self._know("redis-0", _child(self._launcher.pid, "redis-server"))
        handle = self._processes.get(kill.process)
        if handle is not None:
            with contextlib.suppress(ProcessLookupError):  # it is dead, and isn't back yet
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                self.kills.append(self._clock.monotonic())

    async def _continue(self, name: str) -> None:
        await self._clock.sleep(PAUSE_S)
        if name in self._processes:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._processes[name], signal.SIGCONT)


async def run_plan(
    plan: Plan, folder: Path, environment: Mapping[str, str], clock: Clock
) -> Ran:
    """Run a plan in a folder of its own, and check what came of it.

    Args:
        plan: It.
        folder: For logs and data; empty.
        environment: What the job's processes inherit.
        clock: Time.

    Raises:
        OSError: if the folder can't be written, or no process started.
    """
    ran = Ran(plan, folder)
    said = json.dumps(plan.facts(), indent=1)
    await asyncio.to_thread((folder / "plan.json").write_text, said + "\n")
    with (folder / "launch.out").open("wb") as out:
        launcher = await asyncio.create_subprocess_exec(
            *_command(plan, folder),
            cwd=folder,
            env={**environment, **_environment(plan, environment)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=asyncio.subprocess.PIPE,
            limit=1 << 20,
        )
        job = _Job(plan, launcher, clock)
        try:
            async with asyncio.timeout(LIMIT_S):
                code = await job.follow()
        except TimeoutError:
            ran.problems.append(f"the job hasn't ended within {LIMIT_S:.0f} s")
        else:
            if code:
                ran.problems.append(f"the job ended with {code}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                launcher.kill()  # its keeper ends what it started
            await launcher.wait()
    ran.kills = job.kills
    if ran.problems:
        ran.problems += await asyncio.to_thread(_last_words, folder)
        return ran
    found = [_read(folder / "log" / f"worker-{rank}.json") for rank in range(NUM_WORKERS)]
    checked = check(plan, found)
    ran.acked, ran.lost, ran.doubled = checked.acked, checked.lost, checked.doubled
    ran.problems = checked.problems
    ran.recovery_s = recovery_times(job.kills, found)
    return ran


def _command(plan: Plan, folder: Path) -> list[str]:
    words = [sys.executable, "-m", "paramfleet_worker", "launch"]
    words += [f"--server_num={NUM_SERVERS}", f"--worker_num={NUM_WORKERS}"]
    words += [f"--data-dir={folder / 'data'}", f"--durability={plan.durability}"]
    words += [f"--max-restarts={_RESTARTS}", f"--log-dir={folder / 'log'}"]
    return tied([*words, str(Path(ledger.__file__))])


def _environment(plan: Plan, inherited: Mapping[str, str]) -> dict[str, str]:
    defects = plan.defects or inherited.get(DEFECTS_VARIABLE, "")
    return {
        **_QUICK,
        FAILPOINTS: plan.failpoints,
        FAULTS: plan.faults,
        DEFECTS_VARIABLE: defects,
        ledger.PLAN: json.dumps(plan.facts()),
    }


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def _last_words(folder: Path) -> list[str]:
    """Return the last errors in the logs: why a job failed."""
    words = []
    for log in sorted((folder / "log").glob("*log.*")):
        lines = log.read_text(errors="replace").splitlines()
        errors = [line for line in lines if "Error" in line]
        words += [f"{log.name}: {line[:300]}" for line in errors[-2:]]
    return words


def _child(pid: int, program: str) -> int:
    """Return the process that another has started with a program.

    Raises:
        ProcessLookupError: if there is none.
    """
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            if program in Path(f"/proc/{child}/cmdline").read_text():
                return int(child)
    raise ProcessLookupError(program)
