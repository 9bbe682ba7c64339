"""How a step grows with rows, servers, workers and width: ``python benchmarks/growth.py``.

A step pulls and pushes 26,624 rows of this system alone. See README.md beside this file.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

from conditions import Headline
from harness import Suite, run_script, suite_of
from peer.children import Child, cpu_s
from peer.jobs import Processes
from peer.work import Burst, Work
from rounds import Rounds, Turn, least_rounds

__all__ = ["FULL", "Axes", "measure"]

BUDGET_S = 90.0
QUICK_S = 20.0
"""A smaller budget takes small tables: it shows that everything works, and no growth."""

METHOD = (
    "Steps of our client with 1 in flight: pull the rows of unique ids drawn uniformly, push "
    "a gradient for each, SGD on the server, 64 different batches. All tables are full, in "
    "pservers that stay up, and bursts on them are taken in turns; a ratio is to the first "
    "value of the same axis in the same round. Workers are processes that step at the same "
    "time, each on its own batches, and their steps are added up. Servers share one half of "
    "the cores and workers the other; processor time is that of workers, pservers and the "
    "coordinator."
)

GROWTHS = {
    "rows": "growth_rows_most_vs_least",
    "servers": "growth_servers_most_vs_least",
    "workers": "growth_workers_most_vs_least",
    "dim": "growth_bytes_dim_most_vs_least",
}
"""The headline of each axis: steps/s (of dim: bytes/s) at its last value over its first."""


class Axes(NamedTuple):
    """What is varied, one at a time; the first value of each is what the others have."""

    rows: Sequence[int]
    servers: Sequence[int]
    workers: Sequence[int]
    dim: Sequence[int]
    dim_of_others: int = 16
    step_rows: int = 26_624
    steps: int = 16


FULL = Axes(
    rows=(1_000_000, 3_000_000, 10_000_000, 30_000_000),
    servers=(1, 2, 3),
    workers=(1, 2, 3, 4),
    dim=(8, 16, 32, 64, 128),
)
QUICK = FULL._replace(rows=(100_000, 300_000), servers=(1, 2), workers=(1, 2), dim=(8, 64))


class Case(NamedTuple):
    """One value of one axis, and who steps which table for it."""

    axis: str
    value: int
    dim: int
    table: str
    workers: list[Child]
    servers: list[int]
    """Process ids of coordinator and pservers."""


class Growth:
    """Starts the jobs, fills their tables, and runs bursts.

    Args:
        axes: What is varied.
        processes: Starts them.
    """

    def __init__(self, axes: Axes, processes: Processes) -> None:
        self._axes = axes
        self._processes = processes
        self._work = Work(rows=axes.step_rows, dim=axes.dim_of_others, table_rows=axes.rows[0])
        self._num_jobs = 0
        self.cases: list[Case] = []
        self.skipped: dict[str, str] = {}
        """Cases that there is no room for, and why."""

    async def start(self) -> None:
        """Start every job, and fill every table."""
        axes, dim = self._axes, self._axes.dim_of_others
        one, pids = await self._job(servers=1, workers=1)
        for rows in axes.rows:
            if self._fits("rows", rows, rows, dim):
                await self._table(one, f"rows{rows}", rows, dim)
                self.cases.append(Case("rows", rows, dim, f"rows{rows}", one, pids))
        for width in axes.dim:
            if self._fits("dim", width, axes.rows[0], width):
                await self._table(one, f"dim{width}", axes.rows[0], width)
                self.cases.append(Case("dim", width, width, f"dim{width}", one, pids))
        for servers in axes.servers:
            job = (one, pids) if servers == 1 else await self._job(servers=servers, workers=1)
            await self._table(job[0], "rows", axes.rows[0], dim)
            self.cases.append(Case("servers", servers, dim, "rows", *job))
        many, pids = await self._job(servers=1, workers=max(axes.workers))
        await self._table(many, "rows", axes.rows[0], dim)
        for number in axes.workers:
            self.cases.append(Case("workers", number, dim, "rows", many[:number], pids))

    async def burst(self, case: Case) -> Turn:
        """Return steps a second of all workers of a case together, and what a step costs."""
        pids = [*case.servers, *(worker.pid for worker in case.workers)]
        before_s = sum(map(cpu_s, pids))
        asked = [
            worker.ask("burst", name=case.table, steps=self._axes.steps)
            for worker in case.workers
        ]
        bursts = [Burst(**answer) for answer in await asyncio.gather(*asked)]
        used_s = sum(map(cpu_s, pids)) - before_s
        longest_s = max(burst.wall_s for burst in bursts)
        num_steps = sum(len(burst.step_ms) for burst in bursts)
        return Turn(num_steps / longest_s, used_s / num_steps)

    def _fits(self, axis: str, value: int, rows: int, dim: int) -> bool:
        """Return whether a table fits in half of the memory that is available."""
        needed = rows * (4 * dim + 48)
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if needed * 2 <= available:
            return True
        self.skipped[f"{axis} {value}"] = (
            f"{needed >> 20} MiB is more than half of the {available >> 20} MiB available"
        )
        return False

    async def _job(self, *, servers: int, workers: int) -> tuple[list[Child], list[int]]:
        """Start a job; return its workers, and the process ids of what serves them."""
        self._num_jobs += 1
        job = await self._processes.start_job(
            f"growth{self._num_jobs}", servers=servers, workers=workers
        )
        drivers = [
            await self._processes.drive(
                "growing",
                self._work,
                {**job.address, "index": index, "worker_num": workers},
                self._processes.environments.ours,
            )
            for index in range(workers)
        ]
        return drivers, job.pids

    @staticmethod
    async def _table(workers: list[Child], name: str, rows: int, dim: int) -> None:
        await workers[0].ask("table", name=name, rows=rows, dim=dim, fill=True)
        for worker in workers[1:]:
            await worker.ask("table", name=name, rows=rows, dim=dim, fill=False)


async def run(axes: Axes, budget_s: float) -> Suite:
    """Run everything.

    Raises:
        ChildFailedError: if a process fails.
    """
    begin = time.perf_counter()
    async with AsyncExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="growth-")))
        growth = Growth(axes, Processes(stack, logs, pinned=True))
        await growth.start()
        cases = {f"{case.axis} {case.value}": case for case in growth.cases}
        for case in cases.values():
            await growth.burst(case)  # for caches
        left_s = budget_s - (time.perf_counter() - begin)
        rounds = Rounds(list(cases), budget_s=left_s, least=least_rounds(budget_s))
        for name in rounds.turns:
            rounds.figures[name].append(await growth.burst(cases[name]))
        workers = {worker.pid: worker for case in cases.values() for worker in case.workers}
        await asyncio.gather(*(worker.end() for worker in workers.values()))
    return suite_of(
        "growth",
        rows=rows_of(cases, rounds, axes),
        headlines={name: headline(cases, rounds, axis) for axis, name in GROWTHS.items()},
        method=METHOD,
        turns={"growth": rounds.turns},
        details={"axes": axes._asdict(), "skipped": growth.skipped},
    )


def rows_of(cases: dict[str, Case], rounds: Rounds, axes: Axes) -> list[dict[str, Any]]:
    """Return the records of all cases, axis by axis."""
    firsts: dict[str, str] = {}
    found = []
    for name, case in cases.items():
        first = firsts.setdefault(case.axis, name)
        rate = rounds.figure(name)
        found.append(
            {
                "grows": case.axis,
                "to": case.value,
                "steps/s": rate,
                "cpu ms a step": 1e3 * rounds.cpu_s(name),
                "M rows/s each way": axes.step_rows * rate.median / 1e6,
                "MB/s each way": axes.step_rows * _row_bytes(case) * rate.median / 1e6,
                "is times the first": rounds.ratio(name, first),
                "is times the first by cpu": rounds.cpu_ratio(name, first),
            }
        )
    return found


def headline(cases: dict[str, Case], rounds: Rounds, axis: str) -> Headline | None:
    """Return how many times the first value's rate the last value's is; None without both.

    Of the axis ``dim`` it is the rate of bytes.
    """
    mine = [name for name, case in cases.items() if case.axis == axis]
    if len(mine) < 2:
        return None
    first, last = mine[0], mine[-1]
    found = rounds.headline(last, first)
    if axis != "dim":
        return found
    wider = _row_bytes(cases[last]) / _row_bytes(cases[first])
    return found._replace(values=[wider * value for value in found.values])


def _row_bytes(case: Case) -> int:
    return 8 + 4 * case.dim


def measure(*, budget_s: float, axes: Axes | None = None) -> Suite:
    """Measure every axis for about ``budget_s`` seconds, with the filling of tables."""
    chosen = axes or (QUICK if budget_s < QUICK_S else FULL)
    return asyncio.run(run(chosen, budget_s))


if __name__ == "__main__":
    sys.exit(run_script(measure, description=__doc__, budget_s=BUDGET_S))
