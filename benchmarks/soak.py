"""A job under load for ten minutes, with clients that vanish: ``python benchmarks/soak.py``.

Workers pull and push without a pause; others lose their connection in the middle of a body
every second and come again. It fails if a row is wrong at the end, or if the pserver's
memory grows by more than its noise. See README.md beside this file.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import numpy as np

from harness import Suite, markdown_table, with_machine, write_json
from peer.jobs import Job, Processes
from peer.work import Work
from trend import WARM_UP, trend_of

if TYPE_CHECKING:
    from peer.children import Child

__all__ = ["Plan", "measure"]

TABLE = "rows"
STEPS = 8
"""Steps of a burst: what a worker does between two questions."""

METHOD = (
    "One pserver. Steady workers pull and push with 1 in flight without a pause; cut workers "
    "step through a proxy that breaks their connection in the middle of a body, once a period, "
    "at evenly spread places of a step. The pserver's /healthz is asked every 50 ms; "
    "waking_p99_ms is how late the asking process itself woke from its pauses, which is what "
    "the machine's load adds to any answer. Each process's resident memory is looked at every "
    "second, and so is what bodies being received and sent hold in the pserver, by its "
    "metrics. The slope is the median of those between any two of 12 points, the medians of "
    "equal pieces of the time after the first three tenths (Theil), with Sen's interval of 95 "
    "percent, wider by what the pieces are like their neighbours. A process grows if the "
    "interval lies above 0, or if it rises by more than 0.1 MiB a minute from the first "
    "quarter of that time to the last. At the end every row must be, bit for bit, what all "
    "steps make of zeros: each push counted once, cut or not."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What the soak does."""

    seconds: float = 600.0
    work: Work = field(default_factory=lambda: Work(rows=26_624, dim=16, table_rows=1_000_000))
    steady: int = 2
    """Workers that step without a pause."""
    cut: int = 2
    """Workers whose wire is cut."""
    cut_period_s: float = 1.0
    """Seconds from a cut of a worker's wire to its next."""
    health_period_s: float = 0.05
    memory_period_s: float = 1.0


class Samples:
    """What is looked at while the job works.

    Args:
        plan: How often.
        job: Whose pserver is asked.
        processes: The processes whose memory is looked at, by their names.
    """

    def __init__(self, plan: Plan, job: Job, processes: dict[str, int]) -> None:
        self._plan = plan
        self._url = f"http://127.0.0.1:{job.admin_ports[0]}/healthz"
        self._processes = processes
        self._begin = time.perf_counter()
        self.health_ms: list[float] = []
        self.late_ms: list[float] = []
        """How late this process woke from a pause: what the machine's load alone costs."""
        self.seconds: list[float] = []
        self.memory_mib: dict[str, list[float]] = {name: [] for name in processes}
        self.bodies_mib: list[float] = []
        """What bodies on their way held in the pserver, by its metrics."""

    @asynccontextmanager
    async def taking(self) -> AsyncIterator[None]:
        """Take samples until the block ends.

        Raises:
            aiohttp.ClientError: if the pserver doesn't answer, or not with 200.
        """
        async with asyncio.TaskGroup() as tasks:
            acts = (self._ask(), self._look(), self._measure())
            takers = [tasks.create_task(act) for act in acts]
            yield
            for taker in takers:
                taker.cancel()

    async def _ask(self) -> None:
        timeout = aiohttp.ClientTimeout(total=20.0)
        async with aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session:
            while True:
                start = time.perf_counter()
                async with session.get(self._url) as answer:
                    await answer.read()
                took_s = time.perf_counter() - start
                self.health_ms.append(took_s * 1e3)
                pause_s = max(0.0, self._plan.health_period_s - took_s)
                slept_from = time.perf_counter()
                await asyncio.sleep(pause_s)
                late_s = time.perf_counter() - slept_from - pause_s
                self.late_ms.append(late_s * 1e3)

    async def _measure(self) -> None:
        url = self._url.replace("/healthz", "/metrics")
        timeout = aiohttp.ClientTimeout(total=20.0)
        async with aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session:
            while True:
                async with session.get(url) as answer:
                    self.bodies_mib.append(bodies_bytes(await answer.text()) / 2**20)
                await asyncio.sleep(self._plan.memory_period_s)

    async def _look(self) -> None:
        while True:
            self.seconds.append(time.perf_counter() - self._begin)
            for name, pid in self._processes.items():
                self.memory_mib[name].append(memory_mib(pid))
            await asyncio.sleep(self._plan.memory_period_s)


def bodies_bytes(metrics: str) -> float:
    """Return what a pserver's metrics say of bodies being received and sent."""
    values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line[:1] != "#")
    names = ("receiving", "sending")
    return sum(float(values[f"paramfleet_pserver_{name}_bytes"]) for name in names)


def memory_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Soak:
    """The job and its workers.

    Args:
        plan: What they do.
        processes: Starts them.
    """

    def __init__(self, plan: Plan, processes: Processes) -> None:
        self._plan = plan
        self._processes = processes
        self._steps: dict[str, int] = {}
        self.workers: dict[str, Child] = {}
        self.num_cuts = 0

    async def start(self) -> Job:
        """Start everything, and fill the table."""
        plan = self._plan
        kinds = {f"steady {n}": "growing" for n in range(plan.steady)}
        kinds |= {f"cut {n}": "cutting" for n in range(plan.cut)}
        job = await self._processes.start_job("soak", workers=len(kinds))
        for index, (name, module) in enumerate(kinds.items()):
            address = {**job.address, "index": index, "worker_num": len(kinds)}
            ours = self._processes.environments.ours
            self.workers[name] = await self._processes.drive(module, plan.work, address, ours)
            self._steps[name] = 0
        facts = {"name": TABLE, "rows": plan.work.table_rows, "dim": plan.work.dim}
        for index, worker in enumerate(self.workers.values()):
            await worker.ask("table", **facts, fill=index == 0)
        return job

    async def run(self) -> None:
        """Let all workers step until the time is over."""
        end = time.perf_counter() + self._plan.seconds
        async with asyncio.TaskGroup() as tasks:
            for name in self.workers:
                work = self._cut if name.startswith("cut") else self._steady
                tasks.create_task(work(name, end))

    async def count_wrong(self) -> int:
        """Return the rows that are not what all steps make of zeros."""
        first = next(iter(self.workers.values()))
        steps = list(self._steps.values())
        wrong: int = await first.ask("count_wrong", name=TABLE, steps=steps)
        return wrong

    @property
    def num_steps(self) -> int:
        """Return the steps of all workers."""
        return sum(self._steps.values())

    async def _steady(self, name: str, end: float) -> None:
        while time.perf_counter() < end:
            await self.workers[name].ask("burst", name=TABLE, steps=STEPS)
            self._steps[name] += STEPS

    async def _cut(self, name: str, end: float) -> None:
        while (now := time.perf_counter()) < end:
            await self.workers[name].ask("cut_burst", name=TABLE, steps=2)
            self._steps[name] += 2
            self.num_cuts += 1
            took_s = time.perf_counter() - now
            await asyncio.sleep(max(0.0, self._plan.cut_period_s - took_s))


async def run(plan: Plan) -> Suite:
    """Soak a job.

    Raises:
        ChildFailedError: if a process fails.
        aiohttp.ClientError: if the pserver stops to answer.
    """
    async with AsyncExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        soak = Soak(plan, Processes(stack, logs))
        job = await soak.start()
        pids = {"pserver": job.pservers[0].pid}
        pids |= {name: worker.pid for name, worker in soak.workers.items()}
        samples = Samples(plan, job, pids)
        async with samples.taking():
            await soak.run()
        num_wrong = await soak.count_wrong()
        await asyncio.gather(*(worker.end() for worker in soak.workers.values()))
    return report(plan, soak, samples, num_wrong)


def report(plan: Plan, soak: Soak, samples: Samples, num_wrong: int) -> Suite:
    """Return what was found."""
    rows = []
    trends = {name: trend_of(samples.seconds, mib) for name, mib in samples.memory_mib.items()}
    for name, values in samples.memory_mib.items():
        rows.append(
            {
                "process": name,
                "MiB at first": values[0],
                "MiB after the warm-up": values[int(len(values) * WARM_UP)],
                "MiB at last": values[-1],
                "MiB at most": max(values),
                "slope, MiB/min": trends[name].slope,
                "at least": trends[name].low,
                "at most": trends[name].high,
                "rise, MiB/min": trends[name].rise,
                "grows": trends[name].is_growth,
            }
        )
    health = np.percentile(samples.health_ms, [50, 99, 100]).tolist()
    names = ("health_p50_ms", "health_p99_ms", "health_most_ms")
    return {
        "benchmark": "soak",
        "rows": rows,
        "summary": {
            **dict(zip(names, health, strict=True)),
            "waking_p99_ms": float(np.percentile(samples.late_ms, 99)),
            "pserver_slope_mib_per_min": trends["pserver"].slope,
            "pserver_slope_at_least": trends["pserver"].low,
            "pserver_slope_at_most": trends["pserver"].high,
            "pserver_rise_mib_per_min": trends["pserver"].rise,
            "pserver_grows": trends["pserver"].is_growth,
            "wrong_rows": num_wrong,
            "cuts": soak.num_cuts,
            "steps": soak.num_steps,
            "steps_per_s": soak.num_steps / plan.seconds,
            "health_answers": len(samples.health_ms),
            "bodies_p50_mib": float(np.median(samples.bodies_mib)),
            "bodies_most_mib": max(samples.bodies_mib),
        },
        "method": METHOD,
        "details": {"plan": asdict(plan), "memory_mib": samples.memory_mib},
    }


def measure(plan: Plan) -> Suite:
    """Soak a job, and return what was found."""
    return asyncio.run(run(plan))


def main() -> int:
    """Be the command line; returns 1 if a row is wrong or the pserver grows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--output", type=Path, help="write the result here too")
    options = parser.parse_args()
    result = with_machine(lambda: measure(Plan(seconds=60.0 * options.minutes)))
    for line in markdown_table(result["rows"]):
        print(line)
    found = result["summary"]
    if options.output is not None:
        write_json(options.output, result)
    print(json.dumps(found))
    return 1 if found["wrong_rows"] or found["pserver_grows"] else 0


if __name__ == "__main__":
    sys.exit(main())
