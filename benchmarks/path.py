"""The whole path, a pull and a push, beside its peers: ``python benchmarks/path.py``.

Every system has one server process and one client process on loopback, a table of the
same content, and the same steps: pull the rows of unique ids, push a gradient for each,
SGD. See README.md beside this file.
"""

import asyncio
import signal
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness import Ratio, Suite, in_turns, run_script
from peer.children import Child, cpu_s
from peer.jobs import Processes
from peer.work import Burst, Work

BUDGET_S = 75.0
STEPS = 40
"""Steps of a burst."""

OURS = "ours"
BF16 = "ours_bf16"
"""Ours, with ``wire_dtype`` bfloat16."""
LIMITS = "limits"
LIMIT_PARTS = ("transport", "unix", "table")
"""What the limits are asked for, all in one turn: bare TCP, a bare Unix socket, kernels."""

DEPTHS = {
    OURS: (1, 4),
    BF16: (1, 4),
    "grpcio": (1, 4),
    "torch_rpc": (1, 4),
    "redis": (1,),
    "redis_c": (1,),
}
"""Steps in flight, by system. Redis' client steps rows: a second step would undo the first."""

NEEDED = {"grpcio": "grpc", "torch_rpc": "torch", "redis_c": "hiredis"}
"""The modules without which a system can't be measured."""

SLOWNESS = {"redis": 10, "redis_c": 10}
"""How many times fewer steps a burst has of systems that are so slow."""

PEERS = ("torch_rpc", "grpcio", "redis", "redis_c")

METHOD = (
    "A step pulls the rows of unique ids drawn uniformly, then pushes a gradient for each; "
    "the server applies SGD. One server and one client process a system, on loopback. Each "
    "round runs a burst of every system; a ratio is of two bursts of one round, each system "
    "at the better of 1 and 4 steps in flight ('_one_in_flight': both at 1). "
    "path_vs_limits is (bare transport + bare kernels) / ours with 1 in flight, of the same "
    "round: the time of the step's bytes through raw uvloop TCP between two processes (ids "
    "there, rows back; ids and gradients there, 64 bytes back), plus the time of the same "
    "pull and push on a shard in one thread of one process, divided by our time a step; each "
    "is the median of its burst. All parts are measured in turns within a step. On one machine "
    "our transport is a Unix socket: path_vs_unix_limits is by a bare one, with our buffers. "
    "'redis_c' is redis-py with hiredis, 'ours_bf16' is ours with bfloat16 rows, and gradients "
    "rounded to bfloat16 by chance. At the end every table is equal, bit for bit, to what "
    "numpy makes of the steps, and rows that travel as bfloat16 are the nearest to it."
)


class WrongTableError(Exception):
    """Systems whose tables are not what the steps make of the first content."""

    def __init__(self, systems: list[str]) -> None:
        super().__init__(f"wrong numbers in the table of {', '.join(systems)}")


class Case(NamedTuple):
    """One kind of burst."""

    system: str
    about: int | str
    """Steps in flight; of the limits, which half."""


class System(NamedTuple):
    """One system: its client, which is asked, and its server, where it is a process."""

    client: Child
    server_pid: int | None


class Bench:
    """Starts the systems, and runs their bursts.

    Args:
        work: What a step is.
        steps: Of a burst.
        processes: Starts them.
    """

    def __init__(self, work: Work, steps: int, processes: Processes) -> None:
        self._work = work
        self._steps = steps
        self._processes = processes
        self.systems: dict[str, System] = {}
        self.num_steps: dict[str, int] = {}
        """Steps that each system has done."""
        self.bursts: dict[Case, list[Burst]] = {}

    async def start(self) -> dict[str, str]:
        """Start all that can be, with full tables; return why others can't, by their names."""
        missing = {
            system: f"no module {module!r}; it is in the dependency group 'benchmark'"
            for system, module in NEEDED.items()
            if find_spec(module) is None
        }
        await self._start_ours(OURS, "float32")
        await self._start_ours(BF16, "bfloat16")
        for name in ("grpcio", "torch_rpc", LIMITS):
            if name not in missing:
                await self._start_peer(name)
        for name in ("redis", "redis_c"):
            if name not in missing:
                await self._start_redis(name)
        await asyncio.gather(*(each.client.ask("fill") for each in self.systems.values()))
        self.num_steps = dict.fromkeys(self.systems, 0)
        self.bursts = {case: [] for case in self._cases()}
        return missing

    async def run(self, *, budget_s: float, max_rounds: int = 1_000) -> None:
        """Run the rounds there is time for, at least one."""
        others = [Case(LIMITS, part) for part in LIMIT_PARTS[1:]]
        cases = {str(case): case for case in self.bursts if case not in others}
        for name in in_turns(list(cases), budget_s=budget_s, max_rounds=max_rounds):
            for case, burst in (await self._bursts_of(cases[name])).items():
                self.bursts[case].append(burst)

    async def wrong_tables(self) -> list[str]:
        """Return the systems whose tables are not what the steps make of the first content."""
        return [
            name
            for name, system in self.systems.items()
            if name != LIMITS
            and await system.client.ask("digest")
            != self._work.expected_digest(self.num_steps[name])
        ]

    def cpu_ms(self) -> dict[str, list[float]]:
        """Return the processor time of each system so far, of its server and its client."""
        return {
            name: [cpu_s(pid) * 1e3 for pid in (system.server_pid, system.client.pid) if pid]
            for name, system in self.systems.items()
        }

    def _cases(self) -> list[Case]:
        depths = [
            Case(system, depth) for system in self.systems for depth in DEPTHS.get(system, ())
        ]
        return depths + [Case(LIMITS, part) for part in LIMIT_PARTS]

    async def _bursts_of(self, case: Case) -> dict[Case, Burst]:
        """Run a turn: a burst of a case, or of all parts of the limits."""
        steps = max(2, self._steps // SLOWNESS.get(case.system, 1))
        client = self.systems[case.system].client
        if case.system == LIMITS:
            parts = await client.ask("parts", steps=steps)
            return {Case(LIMITS, part): Burst(**parts[part]) for part in LIMIT_PARTS}
        self.num_steps[case.system] += steps
        answer = await client.ask("burst", steps=steps, in_flight=case.about)
        return {case: Burst(**answer)}

    async def _start_ours(self, name: str, wire: str) -> None:
        environment = self._processes.environments.ours
        job = await self._processes.start_job(name)
        address = {**job.address, "wire": wire}
        client = await self._processes.drive("ours", self._work, address, environment)
        self.systems[name] = System(client, job.pservers[0].pid)

    async def _start_peer(self, name: str) -> None:
        given = self._processes.environments
        environment = given.ours if name == LIMITS else given.peers
        server, address = await self._processes.serve(name, self._work, environment)
        client = await self._processes.drive(name, self._work, address, environment)
        self.systems[name] = System(client, server.pid)

    async def _start_redis(self, name: str) -> None:
        redis = await self._processes.start_redis(name, bind="127.0.0.1")
        address = {"url": redis.admin_url, "hiredis": name == "redis_c"}
        environment = self._processes.environments.peers
        client = await self._processes.drive("redis", self._work, address, environment)
        self.systems[name] = System(client, redis.pid)


def rates(bursts: list[Burst]) -> list[float]:
    """Return steps a second, burst by burst."""
    return [len(burst.step_ms) / burst.wall_s for burst in bursts]


def quotients(upper: list[float], lower: list[float]) -> Ratio:
    """Return one figure over another, round by round."""
    return Ratio.of([mine / theirs for mine, theirs in zip(upper, lower, strict=True)])


def times(ours: list[Burst], theirs: list[Burst]) -> Ratio:
    """Return how many times their steps a second ours are."""
    return quotients(rates(ours), rates(theirs))


def better_depth(bursts: dict[Case, list[Burst]], system: str) -> Case | None:
    """Return the case of a system that made more steps a second, by the medians."""
    cases = [case for case in bursts if case.system == system]
    return max(cases, key=lambda case: Ratio.of(rates(bursts[case])).median, default=None)


def typical_ms(bursts: list[Burst]) -> list[float]:
    """Return the median step of each burst: short bursts must not count one interruption."""
    return [statistics.median(burst.step_ms) for burst in bursts]


def limit_ms(bursts: dict[Case, list[Burst]], transport: str) -> list[float]:
    """Return a step's bytes by a bare transport and its kernels, round by round."""
    halves = [typical_ms(bursts[Case(LIMITS, part)]) for part in (transport, "table")]
    return [sum(pair) for pair in zip(*halves, strict=True)]


def rows_of(bursts: dict[Case, list[Burst]], work: Work) -> list[dict[str, Any]]:
    """Return the records of all cases."""
    found = []
    for case, mine in bursts.items():
        rate = Ratio.of(rates(mine))
        ours = bursts.get(Case(OURS, case.about))
        steps = np.concatenate([burst.step_ms for burst in mine])
        pulls = np.concatenate([burst.pull_ms for burst in mine])
        found.append(
            {
                "system": case.system,
                "in flight": case.about,
                "steps/s": rate,
                "M rows/s each way": round(work.rows * rate.median / 1e6, 3),
                "step p50 ms": round(float(np.percentile(steps, 50)), 3),
                "step p99 ms": round(float(np.percentile(steps, 99)), 3),
                "pull p50 ms": round(float(np.percentile(pulls, 50)), 3),
                "ours is times": times(ours, mine) if ours else None,
            }
        )
    return found


def summary_of(bursts: dict[Case, list[Burst]]) -> dict[str, Ratio | None]:
    """Return the headline ratios with their spread; None for what was not measured."""
    ours = better_depth(bursts, OURS)
    assert ours is not None, "ours is always measured"
    found: dict[str, Ratio | None] = {}
    for name in PEERS:
        other, one = better_depth(bursts, name), bursts.get(Case(name, 1))
        found[f"path_vs_{name}"] = times(bursts[ours], bursts[other]) if other else None
        found[f"path_vs_{name}_one_in_flight"] = (
            times(bursts[Case(OURS, 1)], one) if one else None
        )
    narrow, torch_rpc = better_depth(bursts, BF16), better_depth(bursts, "torch_rpc")
    found["path_bf16_vs_torch_rpc"] = (
        times(bursts[narrow], bursts[torch_rpc]) if narrow and torch_rpc else None
    )
    found["path_bf16_vs_float32"] = times(bursts[narrow], bursts[ours]) if narrow else None
    step_ms = typical_ms(bursts[Case(OURS, 1)])
    found["path_vs_limits"] = quotients(limit_ms(bursts, "transport"), step_ms)
    found["path_vs_unix_limits"] = quotients(limit_ms(bursts, "unix"), step_ms)
    return found


async def run(work: Work, steps: int, budget_s: float) -> Suite:
    """Run everything; SIGTERM ends the children too.

    Raises:
        ChildFailedError: if a process fails.
        WrongTableError: if a table ends up other than it must.
    """
    begin = time.perf_counter()
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with AsyncExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="path-")))
        processes = Processes(stack, logs)
        bench = Bench(work, steps, processes)
        missing = await bench.start()
        await bench.run(budget_s=0.0)  # every path once, for caches and compilers
        for bursts in bench.bursts.values():
            bursts.clear()
        before, steps_before = bench.cpu_ms(), dict(bench.num_steps)
        await bench.run(budget_s=budget_s - (time.perf_counter() - begin))
        after, steps_after = bench.cpu_ms(), dict(bench.num_steps)
        wrong = await bench.wrong_tables()
        if wrong:
            raise WrongTableError(wrong)
        for system in bench.systems.values():
            await system.client.end()
    summary = summary_of(bench.bursts)
    return {
        "benchmark": "path",
        "rows": rows_of(bench.bursts, work),
        "summary": {name: ratio and round(ratio.median, 3) for name, ratio in summary.items()},
        "method": METHOD,
        "details": {
            "spread": summary,
            "work": asdict(work),
            "steps of a burst": steps,
            "missing": missing,
            "processor ms a step, server and client": {
                name: [
                    round((late - early) / (steps_after[name] - steps_before[name]), 2)
                    for early, late in zip(before[name], after[name], strict=True)
                ]
                for name in bench.systems
                if name != LIMITS
            },
            "settings": processes.environments.settings(),
        },
    }


WORK = Work(rows=26_624, dim=16, table_rows=1_000_000)


def measure(*, budget_s: float, work: Work = WORK, steps: int = STEPS) -> Suite:
    """Measure the whole path for about ``budget_s`` seconds, with the start of the systems."""
    return asyncio.run(run(work, steps, budget_s))


if __name__ == "__main__":
    sys.exit(run_script(measure, description=__doc__, budget_s=BUDGET_S))
