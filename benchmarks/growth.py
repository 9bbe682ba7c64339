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

from harness import Ratio, Rounds, Suite, in_turns, run_script
from peer.children import Child
from peer.jobs import Processes
from peer.work import Burst, Work

__all__ = ["FULL", "Axes", "measure"]

BUDGET_S = 90.0
QUICK_S = 20.0
"""A smaller budget takes small tables: it shows that everything works, and no growth."""

METHOD = (
    "Steps of our client with 1 in flight: pull the rows of unique ids drawn uniformly, push "
    "a gradient for each, SGD on the server, 64 different batches. All tables are full, in "
    "pservers that stay up, and bursts on them are taken in turns; a ratio is to the first "
    "value of the same axis in the same round. Workers are processes that step at the same "
    "time, each on its own batches, and their steps are added up. Loopback: with as many "
    "cores as this machine has, servers and workers share them."
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
        one = await self._job(servers=1, workers=1)
        for rows in axes.rows:
            if self._has_room("rows", rows, rows, dim):
                await self._table(one, f"rows{rows}", rows, dim)
                self.cases.append(Case("rows", rows, dim, f"rows{rows}", one))
        for width in axes.dim:
            if self._has_room("dim", width, axes.rows[0], width):
                await self._table(one, f"dim{width}", axes.rows[0], width)
                self.cases.append(Case("dim", width, width, f"dim{width}", one))
        for servers in axes.servers:
            workers = one if servers == 1 else await self._job(servers=servers, workers=1)
            await self._table(workers, "rows", axes.rows[0], dim)
            self.cases.append(Case("servers", servers, dim, "rows", workers))
        many = await self._job(servers=1, workers=max(axes.workers))
        await self._table(many, "rows", axes.rows[0], dim)
        for number in axes.workers:
            self.cases.append(Case("workers", number, dim, "rows", many[:number]))

    async def burst(self, case: Case) -> float:
        """Return steps a second of all workers of a case together."""
        asked = [
            worker.ask("burst", name=case.table, steps=self._axes.steps)
            for worker in case.workers
        ]
        bursts = [Burst(**answer) for answer in await asyncio.gather(*asked)]
        longest_s = max(burst.wall_s for burst in bursts)
        return sum(len(burst.step_ms) for burst in bursts) / longest_s

    def _has_room(self, axis: str, value: int, rows: int, dim: int) -> bool:
        """Return whether a table fits in half of the memory that is available."""
        needed = rows * (4 * dim + 48)
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if needed * 2 <= available:
            return True
        self.skipped[f"{axis} {value}"] = (
            f"{needed >> 20} MiB is more than half of the {available >> 20} MiB available"
        )
        return False

    async def _job(self, *, servers: int, workers: int) -> list[Child]:
        self._num_jobs += 1
        job = await self._processes.start_job(
            f"growth{self._num_jobs}", servers=servers, workers=workers
        )
        return [
            await self._processes.drive(
                "growing",
                self._work,
                {**job.address, "index": index, "worker_num": workers},
                self._processes.environments.ours,
            )
            for index in range(workers)
        ]

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
        growth = Growth(axes, Processes(stack, logs))
        await growth.start()
        cases = {f"{case.axis} {case.value}": case for case in growth.cases}
        for case in cases.values():
            await growth.burst(case)  # for caches
        rounds = Rounds(list(cases))
        left_s = budget_s - (time.perf_counter() - begin)
        for name in in_turns(list(cases), budget_s=left_s):
            rounds.figures[name].append(await growth.burst(cases[name]))
        workers = {worker.pid: worker for case in cases.values() for worker in case.workers}
        await asyncio.gather(*(worker.end() for worker in workers.values()))
    rows = rows_of(cases, rounds, axes)
    return {
        "benchmark": "growth",
        "rows": rows,
        "summary": {name: headline(rows, axis) for axis, name in GROWTHS.items()},
        "method": METHOD,
        "details": {"axes": axes._asdict(), "skipped": growth.skipped},
    }


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
                "M rows/s each way": axes.step_rows * rate.median / 1e6,
                "MB/s each way": axes.step_rows * (8 + 4 * case.dim) * rate.median / 1e6,
                "is times the first": rounds.ratio(name, first),
            }
        )
    return found


def headline(rows: list[dict[str, Any]], axis: str) -> float | None:
    """Return how many times the first value's rate the last value's is; None without both."""
    mine = [row for row in rows if row["grows"] == axis]
    if len(mine) < 2:
        return None
    ratio: Ratio = mine[-1]["is times the first"]
    if axis != "dim":
        return ratio.median
    wider: float = mine[-1]["MB/s each way"] / mine[0]["MB/s each way"]
    return wider


def measure(*, budget_s: float, axes: Axes | None = None) -> Suite:
    """Measure every axis for about ``budget_s`` seconds, with the filling of tables."""
    chosen = axes or (QUICK if budget_s < QUICK_S else FULL)
    return asyncio.run(run(chosen, budget_s))


if __name__ == "__main__":
    sys.exit(run_script(measure, description=__doc__, budget_s=BUDGET_S))
