"""This checkout and a former one, in pairs: ``python benchmarks/before_after.py --base DIR``.

``DIR`` is a worktree of the former commit; kernels are compiled before anything is measured:

    git worktree add /tmp/before COMMIT
    python benchmarks/before_after.py --base /tmp/before --budget 600

See README.md beside this file.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from cores import cores_of, pin_process
from harness import Suite, markdown_table, suite_of, with_machine, write_json
from jobs import JobShape, run_jobs, training_jobs, turn_of
from nursery.client import Fork, Nursery
from paramfleet_shared.discovery.redis.embedded import EmbeddedRedis
from paramfleet_shared.system.clock import SystemClock
from peer.children import cpu_s
from peer.work import Work
from rounds import Rounds, Turn, Turns
from trees import HERE, Tree

if TYPE_CHECKING:
    from conditions import Headline

__all__ = ["measure"]

BUDGET_S = 600.0
QUICK_S = 60.0
"""A smaller budget takes tiny shapes: it shows that everything works, and no speed."""

METHOD = """\
The same work by the code of this checkout and of a former one, all processes warm, windows in
turns; figures are this one's speed over the former one's in windows of one round, `_cpu` the
former one's processor time over this one's. training: 2 workers and 1 pserver, a core a worker,
dnn and flights as in training.py, rows not prefetched; "geo" exchanges as often in both, and
merges alike, "geo_by_default" follows each checkout's defaults. path: a worker pulls 26,624
rows of 16 floats and pushes a gradient for each, one step in flight, through the Unix socket.
table: one shard of 10 million rows with Adagrad in one thread, batches of 106,496 ids drawn
uniformly."""

_SCRIPTS = {"dnn": "ctr", "flights": "wide_deep"}
_TRAININGS = {
    f"{work} {mode}": JobShape(script=script, mode=mode)
    for work, script in _SCRIPTS.items()
    for mode in ("sync", "async", "geo", "geo_by_default")
}
_GEO_AS_BEFORE = ("--set=geo_growth=0", "--set=geo_merge=remainder")
"""Exchanges every ``k_steps``, and adds up as the former defaults did: the same work."""
_TINY_CTR = ("--k_steps=4", "--ids=2600", "--batch_size=32", "--batches=8", "--held_out=256")
_TINY = {"dnn sync": JobShape(script="ctr", mode="sync", arguments=_TINY_CTR)}
_STEPS = {"dnn": 25, "flights": 100}
_STEPS_OF_GEO = 100
"""A period, with its exchange in the middle."""

_WORK = Work(rows=26_624, dim=16, table_rows=1_000_000)
_TINY_WORK = Work(rows=512, dim=16, table_rows=2_000)
_PATH_STEPS, _TABLE_STEPS = 40, 8
_TABLE_CASES = ("find", "pull", "step")


class Case(Protocol):
    """The same work in one of the two checkouts."""

    async def window(self) -> Turn:
        """Do some of it."""
        ...


class Sides(NamedTuple):
    """One work in both checkouts."""

    before: Case
    after: Case


class TrainingCase:
    """A job that trains; see ``jobs.TrainingJob``."""

    def __init__(self, job: Any, steps: int) -> None:
        self._job = job
        self._steps = steps

    async def window(self) -> Turn:
        """Train for some steps."""
        return turn_of(await self._job.window(steps=self._steps))


class ForkCase:
    """Commands to a process, and the processor time of all that work on them.

    Args:
        fork: Is asked.
        servers: Process ids of who else works on it.
        ask: The command; its answer has a rate, or the milliseconds of each step.
    """

    def __init__(self, fork: Fork, servers: Sequence[int], ask: dict[str, Any]) -> None:
        self._fork = fork
        self._pids = [fork.pid, *servers]
        self._ask = ask

    async def window(self) -> Turn:
        """Do some steps."""
        before = sum(map(cpu_s, self._pids))
        answer = await self._fork.ask(**self._ask)
        used = sum(map(cpu_s, self._pids)) - before
        if "samples_per_s" in answer:
            return turn_of({**answer, "cpu_s": used})
        return Turn(1e3 / statistics.median(answer["step_ms"]), used / self._ask["steps"])


@asynccontextmanager
async def training_sides(
    shapes: dict[str, JobShape], base: Tree, *, warm_steps: int
) -> AsyncIterator[dict[str, Sides]]:
    """Start each job in both checkouts."""
    both = [
        JobShape(
            script=shape.script,
            mode=shape.mode.partition("_")[0],
            arguments=(*shape.arguments, *rules) if shape.mode == "geo" else shape.arguments,
            tree=tree,
        )
        for shape in shapes.values()
        for tree, rules in ((base, ()), (HERE, _GEO_AS_BEFORE))
    ]
    async with training_jobs(both, warm_steps=warm_steps) as jobs:
        found = {}
        for number, (name, shape) in enumerate(shapes.items()):
            steps = _STEPS_OF_GEO if shape.mode.startswith("geo") else _STEPS[name.split()[0]]
            before, after = jobs[2 * number : 2 * number + 2]
            found[name] = Sides(TrainingCase(before, steps), TrainingCase(after, steps))
        yield found


@asynccontextmanager
async def path_sides(base: Tree, work: Work, *, steps: int) -> AsyncIterator[dict[str, Sides]]:
    """Start a job of one pserver, and a client of it, in both checkouts."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pair-")))
        redis = EmbeddedRedis(folder, clock=SystemClock())
        await redis.start()
        stack.callback(redis.stop)
        cases = []
        for name, tree in (("before", base), ("after", HERE)):
            own = folder / name
            own.mkdir()
            nursery = await stack.enter_async_context(Nursery(own, tree))
            job = [f"--job={name}", f"--redis={redis.admin_url}", "--log-level=WARNING"]
            command = ["-m", "paramfleet_coordinator", *job, "--worker-num=1", "--server-num=1"]
            server = cores_of("server")
            coordinator = await nursery.start("coordinator", command, {}, server)
            command = ["-m", "paramfleet_pserver", *job, "--index=0"]
            pserver = await nursery.start("pserver", command, {}, server)
            facts = [
                json.dumps(asdict(work)),
                json.dumps({"redis": redis.admin_url, "job": name}),
            ]
            command = ["-m", "peer.process", "drive", "ours", *facts]
            client = await nursery.start("client", command, {}, cores_of("client"))
            stack.push_async_callback(_end, client, pserver, coordinator)
            await client.ask("fill")
            ask: dict[str, Any] = {"do": "burst", "steps": steps, "in_flight": 1}
            await client.ask(**ask)
            pin_process(pserver.pid, server)
            pin_process(client.pid, cores_of("client"))
            cases.append(ForkCase(client, [pserver.pid, coordinator.pid], ask))
        yield {"path": Sides(*cases)}


@asynccontextmanager
async def table_sides(base: Tree, *, rows: int, steps: int) -> AsyncIterator[dict[str, Sides]]:
    """Fill the same table in both checkouts."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pair-")))
        forks = []
        for name, tree in (("before", base), ("after", HERE)):
            own = folder / name
            own.mkdir()
            nursery = await stack.enter_async_context(Nursery(own, tree))
            script = str(HERE.benchmarks / "work" / "shard_rows.py")
            fork = await nursery.start(
                "shard", [script, f"--rows={rows}"], {}, cores_of("client")
            )
            stack.push_async_callback(_end, fork)
            await fork.ask("warm", steps=1)
            pin_process(fork.pid, cores_of("client"))
            forks.append(fork)
        yield {
            f"table {case}": Sides(
                *(
                    ForkCase(fork, (), {"do": "window", "steps": steps, "case": case})
                    for fork in forks
                )
            )
            for case in _TABLE_CASES
        }


async def _end(*forks: Fork) -> None:
    for fork in forks:
        await fork.end()


async def compare(sides: dict[str, Sides], *, budget_s: float, quick: bool) -> Rounds:
    """Run windows of all cases in turns."""
    cases = {
        f"{name} {side}": case
        for name, both in sides.items()
        for side, case in both._asdict().items()
    }
    rounds = Rounds(list(cases), budget_s=budget_s, max_rounds=1 if quick else 1000)
    for name in rounds.turns:
        rounds.figures[name].append(await cases[name].window())
    return rounds


async def _measure(base: Tree, *, budget_s: float) -> Suite:
    quick = budget_s < QUICK_S
    rows: list[dict[str, Any]] = []
    turns: dict[str, Turns] = {}
    headlines: dict[str, Headline | None] = {}

    async def part(name: str, sides: dict[str, Sides], share: float) -> None:
        rounds = await compare(sides, budget_s=share * budget_s, quick=quick)
        turns[name] = rounds.turns
        for each in sides:
            after, before = f"{each} after", f"{each} before"
            rows.append(
                {
                    "work": each,
                    "after / before": rounds.ratio(after, before),
                    "_cpu": rounds.cpu_ratio(after, before),
                    "after": rounds.figure(after),
                    "before": rounds.figure(before),
                    "rounds": rounds.turns.num_counted,
                }
            )
            headlines[each.replace(" ", "_") + "_vs_before"] = rounds.headline(after, before)

    work, num_rows = (_TINY_WORK, 200_000) if quick else (_WORK, 10_000_000)
    async with table_sides(base, rows=num_rows, steps=_TABLE_STEPS) as sides:
        await part("table", sides, 0.15)
    async with path_sides(base, work, steps=_PATH_STEPS) as sides:
        await part("path", sides, 0.15)
    if quick:
        async with training_sides(_TINY, base, warm_steps=8) as sides:
            await part("training", sides, 0.3)
    else:
        for work_name in ("dnn", "flights"):
            shapes = {k: v for k, v in _TRAININGS.items() if k.startswith(work_name)}
            async with training_sides(shapes, base, warm_steps=120) as sides:
                await part(work_name, sides, 0.35)
    return suite_of("before_after", rows=rows, headlines=headlines, method=METHOD, turns=turns)


def measure(*, base: Path, budget_s: float = BUDGET_S) -> Suite:
    """Measure this checkout beside that of ``base`` for about so many seconds."""
    return run_jobs(_measure(Tree(base.resolve()), budget_s=budget_s))


def main() -> int:
    """Be the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--base", type=Path, required=True, help="worktree of a former commit")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds to measure")
    parser.add_argument("--output", type=Path, help="write the result here too")
    options = parser.parse_args()
    if not (options.base / "benchmarks" / "nursery").is_dir():
        parser.error(f"{options.base} is no checkout of this project with benchmarks/nursery")
    result = with_machine(lambda: measure(base=options.base, budget_s=options.budget))
    print(*markdown_table(result["rows"]), sep="\n")
    if options.output is not None:
        write_json(options.output, result)
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
