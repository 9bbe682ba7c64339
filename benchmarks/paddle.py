"""The same work on Paddle 3.0.0's parameter server and on ours: ``make bench-paddle``.

One server and two workers, one thread each, on this machine; both systems stay warm and
their windows are taken in turns. See README.md beside this file.
"""

import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Suite, run_script
from jobs import JobShape, training_jobs
from paddle_jobs import PaddleJob, PaddleMissingError, interpreter
from peer.children import Child, ChildFailedError
from peer.jobs import Processes
from peer.work import Work
from rounds import Ratio, in_turns

__all__ = ["measure"]

BUDGET_S = 400.0
QUICK_S = 60.0
"""A smaller budget takes less work and one round: it shows that all runs, and no speed."""

OURS = "ours"
PADDLE = "paddle"
DEFAULT_SHARDS = "paddle, 1000 shards"
KINDS = ("pull", "push", "pull then push")
ROWS = (100, 1_000, 10_000, 106_496)
CALLS_S = 0.8
"""Of one kind and size of call, in one round."""

METHOD = """\
Paddle 3.0.0 and ours on the same numbers, in turns: 1 server + 2 workers (calls: 1), one
thread each, all warm. Paddle trains its static program from InMemoryDataset by
train_from_dataset, its fastest path and the only one whose workers get fresh dense
parameters; tables of 8 shards, which are faster than its default of 1000; data are read
before. Its rate is the sum of its workers' own rates, without the wait for pushes at the end;
ours counts the samples of both until the first is through and what it sent is applied. ctr:
26 slots of rows of 9, 13 numbers, MLP 512-256-128-32, batch 512; async with Adam, GEO (k 100)
with SGD. word2vec: 354,051 words, rows of 300, batches of 100 pairs, 5 negatives a batch, SGD,
GEO (k 400). Calls: table of 1,000,000 x 16, unique uniform ids, SGD; pushes are not waited for
before the next call, but before the clock stops; ours is compared with the faster of Paddle's
two tables. Ratios are of windows of one round. AUC: 20,480 unseen examples; loss_of_50: of
50 trained batches; both after the last window."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """A workload for both systems."""

    name: str
    script: str
    """Its name here, in ``work``, and in ``paddle_side``."""
    mode: str
    optimizer: str
    lr: float
    k_steps: int
    batch: int
    steps: int
    """Of a worker in a window; in GEO whole periods."""
    windows: int
    """So many different ones; then they begin anew."""
    options: Mapping[str, Any]
    """More of the script on Paddle's side."""

    def ours(self) -> JobShape:
        """Return our job."""
        return JobShape(
            script=self.script,
            mode=self.mode,
            arguments=(
                f"--optimizer={self.optimizer}",
                f"--lr={self.lr}",
                f"--k_steps={self.k_steps}",
                f"--batch_size={self.batch}",
                f"--batches={self.steps * self.windows}",
            ),
            pinned=False,
        )

    def paddles(self) -> dict[str, Any]:
        """Return the options of Paddle's script."""
        return {
            "lr": self.lr,
            "k_steps": self.k_steps,
            "batch": self.batch,
            "steps": self.steps,
            "windows": self.windows,
            **self.options,
        }


def trainings(*, quick: bool) -> list[Training]:
    """Return the workloads."""

    def ctr(mode: str, optimizer: str, lr: float) -> Training:
        return Training(
            name=f"ctr {mode}",
            script="ctr",
            mode=mode,
            optimizer=optimizer,
            lr=lr,
            k_steps=100,
            batch=512,
            steps=100,
            windows=1 if quick else 6,
            options={"mode": mode},
        )

    word2vec = Training(
        name="word2vec geo",
        script="word_pairs",
        mode="geo",
        optimizer="sgd",
        lr=2.5,
        k_steps=400,
        batch=100,
        steps=400 if quick else 1600,
        windows=1 if quick else 3,
        options={"dim": 300},
    )
    return [ctr("async", "adam", 1e-3), ctr("geo", "sgd", 2.0), word2vec]


async def train(work: Training, *, budget_s: float) -> list[dict[str, Any]]:
    """Return a row for each system.

    Raises:
        ChildFailedError: if a process fails.
    """
    begin = time.perf_counter()
    rates: dict[str, list[float]] = {OURS: [], PADDLE: []}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paddle-")))
        paddle = PaddleJob(work.script, work.paddles(), workers=2, stack=stack, folder=folder)
        await paddle.start()
        (ours,) = await stack.enter_async_context(
            training_jobs([work.ours()], warm_steps=work.steps)
        )
        await paddle.ask("window")  # as warm as ours
        left_s = budget_s - (time.perf_counter() - begin)
        for system in in_turns(list(rates), budget_s=left_s):
            if system == OURS:
                rates[system].append((await ours.window(steps=work.steps))["samples_per_s"])
            else:
                windows = await paddle.ask("window")
                rates[system].append(sum(each["samples_per_s"] for each in windows))
        found = {OURS: await ours.quality(), PADDLE: (await paddle.ask("quality"))[0]}
        await paddle.end()
    ratios = [mine / theirs for mine, theirs in zip(rates[OURS], rates[PADDLE], strict=True)]
    return [
        {
            "work": work.name,
            "system": system,
            "samples/s": Ratio.of(rates[system]),
            "ours is times": Ratio.of(ratios) if system == PADDLE else None,
            "rounds": len(ratios),
            "quality": next(iter(found[system])),
            "reached": next(iter(found[system].values())),
        }
        for system in (OURS, PADDLE)
    ]


async def call_rows(*, budget_s: float, quick: bool) -> list[dict[str, Any]]:
    """Return a row for each kind and size of call.

    Raises:
        ChildFailedError: if a process fails.
    """
    begin = time.perf_counter()
    work = Work(rows=1, dim=16, table_rows=1_000_000)
    sizes = ROWS[:-1] if quick else ROWS
    cells = {
        f"{kind}, {rows}, {system}": (kind, rows, system)
        for rows in sizes
        for kind in KINDS
        for system in (OURS, PADDLE, DEFAULT_SHARDS)
        if system != DEFAULT_SHARDS or kind == KINDS[-1]
    }
    found: dict[tuple[str, int, str], list[float]] = {cell: [] for cell in cells.values()}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paddle-")))
        ours = await _our_caller(work, Processes(stack, folder))
        asks: dict[str, Callable[..., Any]] = {OURS: ours.ask}
        paddles = []
        for system, shards in ((PADDLE, 8), (DEFAULT_SHARDS, None)):
            options = {"shard_num": shards, "dim": work.dim, "table_rows": work.table_rows}
            job = PaddleJob("rows", options, workers=1, stack=stack, folder=folder)
            await job.start()
            await job.ask("fill")
            paddles.append(job)
            asks[system] = job.ask
        seconds = CALLS_S / 5 if quick else CALLS_S
        left_s = budget_s - (time.perf_counter() - begin)
        for name in in_turns(list(cells), budget_s=left_s):
            kind, rows, system = cells[name]
            answer = await asks[system]("calls", kind=kind, rows=rows, seconds=seconds)
            one = answer if system == OURS else answer[0]
            found[cells[name]].append(one["rows_per_s"])
        await ours.end()
        for job in paddles:
            await job.end()
    return [_call_row(kind, rows, found) for rows in sizes for kind in KINDS]


async def _our_caller(work: Work, processes: Processes) -> Child:
    job = await processes.start_job("rows")
    environment = processes.environments.ours
    caller = await processes.drive("rowcalls", work, job.address, environment)
    await caller.ask("fill")
    return caller


def _call_row(
    kind: str, rows: int, found: Mapping[tuple[str, int, str], Sequence[float]]
) -> dict[str, Any]:
    rates = {
        system: found[kind, rows, system]
        for system in (OURS, PADDLE, DEFAULT_SHARDS)
        if (kind, rows, system) in found
    }
    mine = rates[OURS]
    better = max(
        (rates[system] for system in rates if system != OURS),
        key=lambda each: Ratio.of(each).median,
    )
    ratios = [one / other for one, other in zip(mine, better, strict=True)]
    millions = {
        f"{system}, M rows/s": Ratio.of([rate / 1e6 for rate in rates[system]])
        if system in rates
        else None
        for system in (OURS, PADDLE, DEFAULT_SHARDS)
    }
    return {
        "call": kind,
        "rows": rows,
        **millions,
        "ours is times": Ratio.of(ratios),
        "rounds": len(mine),
    }


async def run(budget_s: float) -> Suite:
    """Run everything; SIGTERM ends the children too.

    Raises:
        ChildFailedError: if a process fails.
    """
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    quick = budget_s < QUICK_S
    end = time.perf_counter() + budget_s
    trained: list[dict[str, Any]] = []
    works = trainings(quick=quick)
    for number, work in enumerate(works):
        left_s = end - time.perf_counter()
        trained += await train(work, budget_s=left_s / (len(works) + 1 - number))
    called = await call_rows(budget_s=end - time.perf_counter(), quick=quick)
    times = {
        row["work"]: row["ours is times"].median for row in trained if row["ours is times"]
    }
    summary = {f"{work.replace(' ', '_')}_vs_paddle": ratio for work, ratio in times.items()}
    for row in called:
        if row["rows"] == 10_000 and row["call"] == KINDS[-1]:
            summary["pull_push_10000_vs_paddle"] = row["ours is times"].median
    return {
        "benchmark": "paddle",
        "rows": trained + called,
        "summary": summary,
        "method": METHOD,
    }


def measure(*, budget_s: float = BUDGET_S) -> Suite:
    """Measure for about ``budget_s`` seconds, with the start of all jobs."""
    return asyncio.run(run(budget_s))


def main() -> int:
    """Run the benchmark; returns the exit status."""
    try:
        interpreter()
        return run_script(measure, description=__doc__ or "", budget_s=BUDGET_S)
    except* (ChildFailedError, PaddleMissingError) as group:
        for error in group.exceptions:
            print(error, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
