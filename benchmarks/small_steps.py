"""What a synchronous step costs beside its arithmetic: ``python benchmarks/small_steps.py``.

Two workers and two pservers train a model of a table in batches of 128, whose step takes one
process about a millisecond; beside it one process does the same without servers, and bare
processes do a step's arithmetic and exchange its bytes. See README.md beside this file.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cores import cores_of_worker
from harness import Suite, run_script, suite_of
from jobs import JobShape, TrainingJob, run_jobs, training_jobs, turn_of
from nursery.client import Fork, Nursery
from peer.children import cpu_s, num_switches
from rounds import Rounds, Turns

if TYPE_CHECKING:
    from conditions import Headline

__all__ = ["measure"]

BUDGET_S = 60.0
QUICK_S = 20.0
"""A smaller budget takes a few steps: it shows that everything works, and no speed."""

WORKERS, SERVERS, BATCH = 2, 2, 128

METHOD = """\
Samples/s of 2 workers + 2 pservers over those of one process, one torch thread each, each step
of 128 samples a worker, workers on a core each: 8 categorical fields with rows of 8, 6
numbers, a layer of 64. All jobs stay warm, and their windows are taken in turns; ratios are of
windows of one round, `_cpu` of processor time. `each` has a table a field, `one` has one for
all, `ahead` too with fleet.prefetch. `floor` is no training: 2 processes do the arithmetic of
a step, send its bytes to 2 others through bare Unix sockets, and wait until these have all of
them. CPU and waits (how often a thread stopped to wait) are a step's of one worker and of one
pserver; requests are those of one worker and step to all pservers."""

_COUNTS_PUBLISHED_S = 1.5
"""A pserver publishes what it has counted once a second."""

_WORK: dict[str, tuple[str, ...]] = {
    "each adam": ("--tables=each", "--optimizer=adam"),
    "each sgd": ("--tables=each", "--optimizer=sgd"),
    "one adam": ("--tables=one", "--optimizer=adam"),
    "ahead adam": ("--tables=one", "--optimizer=adam", "--prefetch=1"),
}
_TINY = ("each adam",)
_MODES = ("single", "sync")


class Floor:
    """The processes that exchange a step's bytes; a window of theirs is as a job's.

    Args:
        nursery: Forks them.
        options: Of the workload.
    """

    def __init__(self, nursery: Nursery, options: Sequence[str]) -> None:
        self._nursery = nursery
        self._options = options
        self._workers: list[Fork] = []
        self._servers: list[Fork] = []

    async def start(self, *, warm_steps: int) -> None:
        """Start every process."""
        names = [f"paramfleet-floor/{os.getpid()}/{number}" for number in range(SERVERS)]
        for number in range(WORKERS):
            worker = ["-m", "peer.step_floor", "work", *self._options]
            cores = cores_of_worker(number)
            fork = await self._nursery.start(f"floor-{number}", worker, {}, cores)
            self._workers.append(fork)
        sent, answered = await self._workers[0].ask("bytes", servers=SERVERS)
        sizes = [str(size) for size in (WORKERS, sent, answered)]
        for number, name in enumerate(names):
            server = ["-m", "peer.step_floor", "serve", name, *sizes]
            self._servers.append(await self._nursery.start(f"floor-s{number}", server, {}))
            await self._servers[-1].ask("listen")
        await self._ask("connect", names=names, sent=sent, answered=answered)
        await self.window(steps=warm_steps)

    async def window(self, *, steps: int) -> dict[str, float]:
        """Run a window of so many steps; returns what a job's does."""
        before = self._use()
        found = await self._ask("window", steps=steps)
        figures = {name: used - before[name] for name, used in self._use().items()}
        figures["cpu_s"] = figures["worker_cpu_s"] + figures["server_cpu_s"]
        figures["seconds"] = max(each["seconds"] for each in found)
        return {**figures, "samples_per_s": WORKERS * BATCH * steps / figures["seconds"]}

    async def end(self) -> None:
        """End them; the servers do when the workers are gone."""
        for fork in (*self._workers, *self._servers):
            await fork.end()

    def _use(self) -> dict[str, float]:
        use: dict[str, float] = {}
        for role, forks in (("worker", self._workers), ("server", self._servers)):
            use[f"{role}_cpu_s"] = sum(cpu_s(fork.pid) for fork in forks)
            use[f"{role}_waits"] = sum(num_switches(fork.pid) for fork in forks)
        return use

    async def _ask(self, do: str, **arguments: Any) -> list[Any]:
        return await asyncio.gather(*(fork.ask(do, **arguments) for fork in self._workers))


@asynccontextmanager
async def _floor(options: Sequence[str], *, warm_steps: int) -> AsyncIterator[Floor]:
    with tempfile.TemporaryDirectory(prefix="floor-") as folder:
        async with Nursery(Path(folder)) as nursery:
            floor = Floor(nursery, options)
            await floor.start(warm_steps=warm_steps)
            yield floor
            await floor.end()


def measure(*, budget_s: float = BUDGET_S, data: Sequence[str] = ()) -> Suite:
    """Measure every case for about ``budget_s`` seconds.

    Args:
        budget_s: Seconds.
        data: Options of the workload that say which data.
    """
    quick = budget_s < QUICK_S
    names = _TINY if quick else tuple(_WORK)
    rows: list[dict[str, Any]] = []
    turns: dict[str, Turns] = {}
    headlines: dict[str, Headline | None] = {}
    for name in names:
        options = (*_WORK[name], *data)
        part_s = budget_s / len(names)
        found = run_jobs(_measure(options, quick=quick, budget_s=part_s))
        rows += [_row(name, case, found) for case in found.windows]
        turns[name] = found.rounds.turns
        for case in found.windows:
            if case != "single":
                headline = f"small_{name.replace(' ', '_')}_{case}_vs_single"
                headlines[headline] = found.rounds.headline(case, "single")
                headlines[f"{headline}_cpu"] = found.rounds.cpu_headline(case, "single")
    return suite_of("small_steps", rows=rows, headlines=headlines, method=METHOD, turns=turns)


class _Found(NamedTuple):
    """What the windows of one workload came to."""

    rounds: Rounds
    windows: dict[str, list[dict[str, float]]]
    steps: int
    """Of a worker in a window."""
    requests: float
    """Of a worker and step of sync."""


async def _measure(options: Sequence[str], *, quick: bool, budget_s: float) -> _Found:
    """Measure each case of one workload."""
    steps = 10 if quick else 400
    shapes = [
        JobShape(script="tabular", mode=mode, arguments=tuple(options), servers=SERVERS)
        for mode in _MODES
    ]
    floors = [option for option in options if not option.startswith(("--opt", "--prefetch"))]
    begun = asyncio.get_running_loop().time()
    async with (
        training_jobs(shapes, warm_steps=steps) as running,
        _floor(floors, warm_steps=steps) as floor,
    ):
        cases: dict[str, TrainingJob | Floor] = dict(zip(_MODES, running, strict=True))
        cases["floor"] = floor
        found: dict[str, list[dict[str, float]]] = {case: [] for case in cases}
        left_s = budget_s - (asyncio.get_running_loop().time() - begun)
        rounds = Rounds(list(cases), budget_s=left_s, max_rounds=1 if quick else 1000)
        for case in rounds.turns:
            window = await cases[case].window(steps=steps)
            rounds.figures[case].append(turn_of(window))
            found[case].append(window)
        requests = await _requests(running[1], steps=steps)
    return _Found(rounds, found, steps, requests)


async def _requests(job: TrainingJob, *, steps: int) -> float:
    """Return how many requests a step of one worker takes."""
    counts: list[int] = []
    for _ in range(2):
        await asyncio.sleep(_COUNTS_PUBLISHED_S)
        counts.append(sum((await job.num_requests()).values()))
        if len(counts) == 1:
            await job.window(steps=steps)
    return (counts[1] - counts[0]) / steps / WORKERS


def _row(work: str, case: str, found: _Found) -> dict[str, Any]:
    mine = found.rounds.turns.kept(found.windows[case])
    workers, servers = (1, 0) if case == "single" else (WORKERS, SERVERS)
    total = found.steps * len(mine)

    def of_step(name: str, processes: int, factor: float = 1.0) -> float:
        return sum(each[name] for each in mine) * factor / total / max(1, processes)

    return {
        "work": work,
        "case": case,
        "vs_single": found.rounds.ratio(case, "single"),
        "vs_single_cpu": found.rounds.cpu_ratio(case, "single"),
        "samples_per_s": [round(value) for value in found.rounds.figure(case)],
        "requests": round(found.requests, 2) if case == "sync" else None,
        "worker_cpu_us": round(of_step("worker_cpu_s", workers, 1e6)),
        "server_cpu_us": round(of_step("server_cpu_s", servers, 1e6)),
        "worker_waits": round(of_step("worker_waits", workers), 2),
        "server_waits": round(of_step("server_waits", servers), 2),
        "rounds": found.rounds.turns.num_counted,
    }


def _data_options() -> list[str]:
    """Take ``--data_dir`` off the command line."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--data_dir")
    options, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    return [] if options.data_dir is None else [f"--data_dir={options.data_dir}"]


if __name__ == "__main__":
    data = _data_options()
    sys.exit(
        run_script(
            lambda *, budget_s: measure(budget_s=budget_s, data=data),
            description=__doc__ or "",
            budget_s=BUDGET_S,
        )
    )
