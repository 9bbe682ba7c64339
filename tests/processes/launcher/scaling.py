"""A launched job of known numbers, and what is done to its pservers while it trains."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_worker.app.finding import find_job
from paramfleet_worker.app.operating import Operator, operator_of
from paramfleet_worker.app.verify import ledger
from paramfleet_worker.app.verify.checking import Checked, check
from paramfleet_worker.app.verify.plan import Mode, Plan

__all__ = ["Scaled", "ask_job", "plan_of"]

LIMIT_S = 200.0
LAST_LINES_S = 3.0

_STEP = re.compile(r"\[worker 0\] ledger step (\d+)\.\n?")
_PID = re.compile(r"\[(\w+) (\d+)\] ledger pid=(\d+)\n?")


PACE_S = 0.06
"""After each step until all was done to the job: processes take some seconds to start."""


def ask_job(job: str, what: Callable[[Operator], Any]) -> Any:
    """Return what a job of this machine answers, asked as a command would ask it."""
    found = find_job({"job": job, "redis": None}, read_environment(), url="")
    return what(operator_of(found))


def plan_of(mode: Mode, *, steps: int = 400) -> Plan:
    """Return a run without faults of its own.

    It has few steps: where changes add up in any order, rounding grows with their number.
    """
    return Plan(seed=0, mode=mode, steps=steps)


class Scaled:
    """One launch of the ledger. Belongs to one event loop.

    Args:
        plan: What is trained.
        folder: For logs; empty.
        options: Of the launch, beside the workers.
    """

    def __init__(self, plan: Plan, folder: Path, *options: str) -> None:
        self.plan = plan
        self.folder = folder
        self.job = f"scaled{os.getpid()}-{folder.name}"
        self._options = options
        self.step = 0
        self.pids: dict[str, int] = {}
        self.lines: list[str] = []
        self._stepped = asyncio.Condition()
        self.code: int | None = None

    async def run(
        self, act: Callable[["Scaled"], Coroutine[Any, Any, None]], *, fails: bool = False
    ) -> list[Mapping[str, Any]]:
        """Train to the end, and act meanwhile; return what the workers found.

        Of a job that is to fail, nothing: its ``lines`` say why it did.
        """
        words = [sys.executable, "-m", "paramfleet_worker", "launch", "--worker_num=2"]
        words += [*self._options, f"--job={self.job}", f"--log-dir={self.folder / 'log'}"]
        restarts = any(each.startswith(("--data-dir", "--replicas")) for each in self._options)
        words += ["--rerun-script"] if restarts else []  # each process says its number
        launcher = await asyncio.create_subprocess_exec(
            *tied([*words, str(Path(ledger.__file__))]),
            cwd=self.folder,
            env={
                **read_environment(),
                ledger.PLAN: json.dumps({**self.plan.facts(), "pace_s": PACE_S}),
            },
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            limit=1 << 20,
        )
        try:
            async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
                acting = tasks.create_task(self._act(act))
                assert launcher.stderr is not None
                async for line in launcher.stderr:
                    await self._take(line.decode(errors="replace"))
                self.code = await launcher.wait()
                if not acting.done():
                    acting.cancel()
        except BaseExceptionGroup as failed:
            failed.add_note(await self._last_lines(launcher))
            raise
        finally:
            if launcher.returncode is None:
                launcher.kill()
                await launcher.wait()
        assert (self.code != 0) == fails, "".join(self.lines[-40:])
        if fails:
            return []
        assert acting.done()
        assert not acting.cancelled(), "the job ended before all was done to it"
        return [
            json.loads((self.folder / "log" / f"worker-{rank}.json").read_text())
            for rank in range(2)
        ]

    async def _last_lines(self, launcher: asyncio.subprocess.Process) -> str:
        """Return what a job said that is ending, or had ended, when something failed."""
        assert launcher.stderr is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_LINES_S):
                async for line in launcher.stderr:
                    await self._take(line.decode(errors="replace"))
        last = "".join(self.lines[-40:])
        return f"exit status {launcher.returncode}, step {self.step}:\n{last}"

    async def _act(self, act: Callable[["Scaled"], Coroutine[Any, Any, None]]) -> None:
        await act(self)
        await asyncio.to_thread((self.folder / "log" / ledger.HURRIES).touch)

    def check(self, found: list[Mapping[str, Any]]) -> Checked:
        """Return what the numbers say."""
        return check(self.plan, found)

    async def reached(self, step: int) -> None:
        """Return when worker 0 has taken a step."""
        async with self._stepped:
            await self._stepped.wait_for(lambda: self.step >= step)

    async def status(self) -> dict[str, Any]:
        """Return the coordinator's status."""
        return dict(await self._ask(lambda operator: operator.get("status")))

    async def scale(self, pservers: int) -> dict[str, Any]:
        """Have so many processes."""
        body = {"pservers": pservers}
        return dict(await self._ask(lambda operator: operator.post("scale", body)))

    async def hurt(self, action: str, target: str) -> dict[str, Any]:
        """Hurt a process, as ``paramfleet chaos`` does."""
        body = {"action": action, "target": target}
        return dict(await self._ask(lambda operator: operator.post("chaos", body)))

    async def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the plan once it is as asked."""
        while True:
            plan = (await self.status())["plan"]
            if holds(plan):
                return dict(plan)
            await asyncio.sleep(0.1)

    def kill(self, name: str) -> None:
        """Kill a process, as ``pserver-1``."""
        os.kill(self.pids[name], signal.SIGKILL)

    async def _ask(self, what: Callable[[Operator], Any]) -> Any:
        return await asyncio.to_thread(ask_job, self.job, what)

    async def _take(self, line: str) -> None:
        if found := _STEP.fullmatch(line):
            async with self._stepped:
                self.step = int(found[1])
                self._stepped.notify_all()
            return
        if " ledger step " not in line:
            self.lines.append(line)
        if found := _PID.fullmatch(line):
            self.pids[f"{found[1]}-{found[2]}"] = int(found[3])


def balanced(processes: int) -> Callable[[dict[str, Any]], bool]:
    """Return whether so many processes share the groups evenly, and nothing moves."""

    def holds(plan: dict[str, Any]) -> bool:
        alive = [each for each in plan["processes"] if each["alive"]]
        loads = [len(each["groups"]) for each in alive]
        even = bool(loads) and max(loads) - min(loads) <= 1
        return len(alive) == processes and even and plan["moving"] is None

    return holds
