"""Carries out the plan of one run: a launched job, what is killed from outside, and the end."""

import asyncio
import contextlib
import json
import os
import re
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paramfleet_shared.net.rpc.breaking.planned_faults import VARIABLE as FAULTS
from paramfleet_shared.settings.failpoints import DEFECTS_VARIABLE, MARK
from paramfleet_shared.settings.failpoints import VARIABLE as FAILPOINTS
from paramfleet_shared.system.clock import Clock
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.system.processes.own_modules import module_command
from paramfleet_worker.app.verify import ledger
from paramfleet_worker.app.verify.checking import check, recovery_times
from paramfleet_worker.app.verify.moving import Mover
from paramfleet_worker.app.verify.plan import NUM_SERVERS, NUM_WORKERS, Kill, Order, Plan

__all__ = ["Job", "Ran", "run_plan"]

LIMIT_S = 150.0
"""After which a run that hasn't ended is a failure."""

PAUSE_S = 0.4
"""How long a process stands still that a failpoint has stopped."""

_PID = re.compile(r"\[(\w+) (\d+)\] ledger pid=(\d+)\n?")
_STEP = re.compile(r"\[worker (\d+)\] ledger step (\d+)\.\n?")
_ACTED = re.compile(rf"\[(\w+) (\d+)\] {MARK} (.*) (kill|stop|slow) (\d+\.\d+)\n?")
_ORDERED = " chaos "
"""In a line of what an operator has asked for: nobody else has to let that process go on."""

_LAUNCHER = "[launcher] "

_LAST_WORDS = 40

_ACT_AT = 10
"""The step of worker 0 after which ``act`` is called."""

_RESTARTS = 20
"""More than any plan needs. An elastic job has the default, which restarts no worker: another
one would take its steps again."""

_QUICK = {
    "PARAMFLEET_LEASE_TTL_S": "2",
    "PARAMFLEET_LEASE_RENEW_S": "0.2",
    "PARAMFLEET_CALL_TIMEOUT_S": "30",
    "PARAMFLEET_BARRIER_TIMEOUT_S": "90",
    "PARAMFLEET_PSERVER__LOG_SEGMENT_BYTES": str(1 << 14),
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
    moves: int = 0
    """Groups that moved from one pserver to another."""
    seconds: float = 0.0
    hurt_at: float | None = None
    """When processes had been hurt by an order."""
    ended_at: float = 0.0
    last_words: list[str] = field(default_factory=list)
    """Of the launcher."""
    found: list[dict[str, Any]] = field(default_factory=list)
    """What workers had at the end."""
    recovery_s: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Job:
    """A launched job, and who is killed when in it. Belongs to one event loop.

    Args:
        plan: What it runs.
        launcher: Its process.
        environment: Of commands that act on it.
        clock: Time.
        act: Called when worker 0 has ended its tenth step.
    """

    def __init__(
        self,
        plan: Plan,
        launcher: asyncio.subprocess.Process,
        environment: Mapping[str, str],
        clock: Clock,
        act: Callable[["Job"], Awaitable[None]] | None = None,
    ) -> None:
        self._act = act
        self._environment = dict(environment)
        self.kills: list[float] = []
        self._launcher = launcher
        self._clock = clock
        self.steps: dict[int, int] = {}
        """By rank, the newest step that a worker has ended."""
        self.hurt_at: float | None = None
        """When processes had been ordered to be hurt."""
        self.acted_at: float | None = None
        """When a process said that it was killed, stopped or slowed by an order."""
        self.last_words: deque[str] = deque(maxlen=_LAST_WORDS)
        """The launcher's own last lines."""
        self.mover = Mover(environment["PARAMFLEET_JOB"], environment, clock)
        self.problems: list[str] = []
        """Orders that were refused."""
        self._kills = list(plan.kills)
        self._moves = list(plan.moves)
        self._orders = list(plan.orders)
        self._processes: dict[str, int] = {}
        self._pids: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        """Pauses and orders."""

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
            for task in self._tasks:
                task.cancel()
            self.mover.close()
            self.problems += self.mover.problems

    def _take(self, line: str) -> None:
        if found := _STEP.fullmatch(line):
            rank, step = int(found[1]), int(found[2])
            self.steps[rank] = step
            if rank == 0:
                self._act_at(step)
        elif line.startswith(_LAUNCHER):
            self.last_words.append(line.removeprefix(_LAUNCHER).rstrip())
        elif found := _PID.fullmatch(line):
            self._know(f"{found[1]}-{found[2]}", int(found[3]))
        elif found := _ACTED.fullmatch(line):
            if found[4] == "kill":
                self.kills.append(float(found[5]))
            if _ORDERED in found[3]:
                self.acted_at = float(found[5])
            elif found[4] == "stop":
                name = f"{found[1]}-{found[2]}"
                pause = asyncio.get_running_loop().create_task(self._continue(name))
                self._tasks.add(pause)

    @property
    def launcher_pid(self) -> int:
        """Return the launcher's process."""
        return self._launcher.pid

    def pid_of(self, name: str) -> int:
        """Return the process that has a name now, as ``pserver-0``."""
        return self._pids[name]

    def _act_at(self, step: int) -> None:
        if self._act is not None and step >= _ACT_AT:
            act, self._act = self._act, None
            self._tasks.add(asyncio.get_running_loop().create_task(self._carry_out(act)))
        while self._kills and self._kills[0].step <= step:
            self._kill(self._kills.pop(0))
        orders = [order for order in self._orders if order.step <= step]
        if orders:
            self._orders = self._orders[len(orders) :]
            self._tasks.add(asyncio.get_running_loop().create_task(self._hurt(orders)))
        while self._moves and self._moves[0].step <= step:
            self.mover.want(self._moves.pop(0).processes)

    def _know(self, name: str, pid: int) -> None:
        """Have a handle of a process, which can't become another's."""
        with contextlib.suppress(ProcessLookupError):
            self._pids[name] = pid
            former = self._processes.get(name)
            self._processes[name] = os.pidfd_open(pid)
            if former is not None:
                os.close(former)

    def _kill(self, kill: Kill) -> None:
        if kill.process in _PROGRAMS:
            with contextlib.suppress(ProcessLookupError):  # likewise
                self._know(kill.process, _child(self._launcher.pid, _PROGRAMS[kill.process]))
        handle = self._processes.get(kill.process)
        if handle is not None:
            with contextlib.suppress(ProcessLookupError):  # it is dead, and isn't back yet
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                self.kills.append(self._clock.monotonic())

    async def _carry_out(self, act: Callable[["Job"], Awaitable[None]]) -> None:
        await act(self)
        self.hurt_at = self._clock.monotonic()

    async def _hurt(self, orders: Sequence[Order]) -> None:
        """Hurt processes, all at once."""
        said = await asyncio.gather(*(self._ask("chaos", *each.words) for each in orders))
        self.hurt_at = self._clock.monotonic()
        self.problems += [text for text in said if text]

    async def _ask(self, *words: str) -> str:
        """Run a command on the job; return what was wrong with it."""
        command = module_command("paramfleet_worker", *words)
        asked = await asyncio.create_subprocess_exec(
            *tied(command),
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await asked.communicate()
        text = said.decode(errors="replace").strip()[-300:]
        return f"{' '.join(words)} was refused: {text}" if asked.returncode else ""

    async def _continue(self, name: str) -> None:
        await self._clock.sleep(PAUSE_S)
        if name in self._processes:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._processes[name], signal.SIGCONT)


async def run_plan(
    plan: Plan,
    folder: Path,
    environment: Mapping[str, str],
    clock: Clock,
    *,
    act: Callable[[Job], Awaitable[None]] | None = None,
) -> Ran:
    """Run a plan in a folder of its own, and check what came of it.

    Args:
        plan: It.
        folder: For logs and data; empty.
        environment: What the job's processes inherit.
        clock: Time.
        act: Called when worker 0 has ended its tenth step, to hurt the job in other ways.

    Raises:
        OSError: if the folder can't be written, or no process started.
    """
    ran = Ran(plan, folder)
    began = clock.monotonic()
    said = json.dumps(plan.facts(), indent=1)
    await asyncio.to_thread((folder / "plan.json").write_text, said + "\n")
    environment = {**_QUICK, **environment, **_environment(plan, environment, folder)}
    with (folder / "launch.out").open("wb") as out:
        launcher = await asyncio.create_subprocess_exec(
            *_command(plan, folder),
            cwd=folder,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=asyncio.subprocess.PIPE,
            limit=1 << 20,
        )
        job = Job(plan, launcher, environment, clock, act)
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
    ran.ended_at = clock.monotonic()
    ran.seconds = ran.ended_at - began
    ran.kills, ran.moves = job.kills, job.mover.num_moves
    ran.hurt_at, ran.last_words = job.acted_at or job.hurt_at, list(job.last_words)
    ran.problems += job.problems
    if ran.problems:
        ran.problems += await asyncio.to_thread(_last_words, folder)
        return ran
    found, dead = await asyncio.to_thread(_read_all, folder, job.steps)
    if dead and not plan.elastic:
        ran.problems.append(f"workers {sorted(dead)} didn't end, and the job did")
        return ran
    checked = check(plan, found, dead)
    ran.acked, ran.lost, ran.doubled = checked.acked, checked.lost, checked.doubled
    ran.problems = checked.problems
    ran.recovery_s = recovery_times(job.kills, found)
    ran.found = found
    return ran


def _command(plan: Plan, folder: Path) -> list[str]:
    words = module_command("paramfleet_worker", "launch")
    groups = f":{2 * NUM_SERVERS}" if plan.moves else ""
    words += [f"--server_num={NUM_SERVERS}{groups}", f"--worker_num={NUM_WORKERS}"]
    words += [f"--data-dir={folder / 'data'}", f"--durability={plan.durability}"]
    words += [f"--log-dir={folder / 'log'}", f"--job={_job_of(folder)}"]
    words += ["--chaos"]
    words += ["--elastic"] if plan.elastic else [f"--max-restarts={_RESTARTS}"]
    words += [f"--replicas={plan.replicas}"] if plan.replicas else []
    return tied([*words, str(Path(ledger.__file__))])


def _job_of(folder: Path) -> str:
    """Return a name that no other job here has."""
    return "verify-" + re.sub(r"[^A-Za-z0-9]", "", folder.name)[-40:]


def _environment(plan: Plan, inherited: Mapping[str, str], folder: Path) -> dict[str, str]:
    defects = plan.defects or inherited.get(DEFECTS_VARIABLE, "")
    return {
        "PARAMFLEET_JOB": _job_of(folder),
        FAILPOINTS: plan.failpoints,
        FAULTS: plan.faults,
        DEFECTS_VARIABLE: defects,
        ledger.PLAN: json.dumps(plan.facts()),
    }


def _read_all(
    folder: Path, steps: Mapping[int, int]
) -> tuple[list[dict[str, Any]], dict[int, int]]:
    """Return what workers wrote down at their end, and the last steps of those that didn't."""
    found, dead = [], {}
    for rank in range(NUM_WORKERS):
        path = folder / "log" / f"worker-{rank}.json"
        if path.exists():
            found.append(json.loads(path.read_text()))
        else:
            dead[rank] = steps.get(rank, 0)
    return found, dead


def _last_words(folder: Path) -> list[str]:
    """Return the last errors in the logs: why a job failed."""
    words = []
    for log in sorted((folder / "log").glob("*log.*")):
        lines = log.read_text(errors="replace").splitlines()
        errors = [line for line in lines if "Error" in line]
        words += [f"{log.name}: {line[:300]}" for line in errors[-2:]]
    return words


_PROGRAMS = {"redis-0": "redis-server", "coordinator-0": "paramfleet_coordinator"}
"""Of the processes that don't run the ledger."""


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
