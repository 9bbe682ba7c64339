"""The whole path, a pull and a push, beside its peers: ``python benchmarks/path.py``.

Every system has one server process and one client process on loopback, a table of the
same content, and the same steps: pull the rows of unique ids, push a gradient for each,
SGD. See README.md beside this file.
"""

import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from harness import Suite, run_script, suite_of
from path_figures import (
    BF16,
    LIMIT_PARTS,
    LIMITS,
    OURS,
    OURS_TCP,
    Case,
    Found,
    Measured,
    headlines_of,
    rows_of,
)
from peer.children import Child, cpu_s
from peer.jobs import Processes
from peer.work import Burst, Work
from rounds import Turns, least_rounds

BUDGET_S = 80.0
STEPS = 40
"""Steps of a burst."""

DEPTHS = {
    OURS: (1, 4),
    OURS_TCP: (1, 4),
    BF16: (1, 4),
    "grpcio": (1, 4),
    "torch_rpc": (1, 4),
    "torch_rpc_tcp": (1, 4),
    "redis": (1,),
    "redis_c": (1,),
}
"""Steps in flight, by system. Redis' client steps rows: a second step would undo the first."""

NEEDED = {"grpcio": "grpc", "redis_c": "hiredis"}
"""The modules without which a system can't be measured."""

SLOWNESS = {"redis": 10, "redis_c": 10}
"""How many times fewer steps a burst has of systems that are so slow."""

METHOD = (
    "A step pulls the rows of unique ids drawn uniformly, then pushes a gradient for each; "
    "the server applies SGD. One server and one client process a system, on loopback, each on "
    "cores of its own. Each round runs a burst of every system; a ratio is of two bursts of "
    "one round, each system at the better of 1 and 4 steps in flight ('_one_in_flight': both "
    "at 1). "
    "path_vs_X is what users of one machine get: ours through a Unix socket, torch_rpc through "
    "what TensorPipe chooses, shared memory among it, grpcio and Redis through TCP. "
    "path_vs_X_tcp is both through TCP: 'ours_tcp' are pservers without the Unix socket, "
    "'torch_rpc_tcp' is TensorPipe with its TCP transport alone. '_cpu' is the same ratio of "
    "processor time a step, of all processes of a system but the registry. "
    "path_vs_limits is (bare transport + bare kernels) / ours with 1 in flight, of the same "
    "round: the time of the step's bytes through raw uvloop TCP between two processes (ids "
    "there, rows back; ids and gradients there, 64 bytes back), plus the time of the same "
    "pull and push on a shard in one thread of one process, divided by our time a step; each "
    "is the median of its burst. All parts are measured in turns within a step. "
    "path_tcp_vs_limits is by ours_tcp, path_vs_unix_limits by a bare Unix socket with our "
    "buffers. "
    "'redis_c' is redis-py with hiredis, 'ours_bf16' is ours with bfloat16 rows, and gradients "
    "rounded to bfloat16 by chance. At the end every table is equal, bit for bit, to what "
    "numpy makes of the steps, and rows that travel as bfloat16 are the nearest to it."
)


class WrongTableError(Exception):
    """Systems whose tables are not what the steps make of the first content."""

    def __init__(self, systems: list[str]) -> None:
        super().__init__(f"wrong numbers in the table of {', '.join(systems)}")


class System(NamedTuple):
    """One system: its client, which is asked, and the processes that serve it."""

    client: Child
    servers: Sequence[int]


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
        self.found: Found = {}

    async def start(self) -> dict[str, str]:
        """Start all that can be, with full tables; return why others can't, by their names."""
        missing = {
            system: f"no module {module!r}; it is in the dependency group 'benchmark'"
            for system, module in NEEDED.items()
            if find_spec(module) is None
        }
        await self._start_ours(OURS)
        await self._start_ours(OURS_TCP, {"PARAMFLEET_PSERVER__NEARBY": "false"})
        await self._start_ours(BF16, wire="bfloat16")
        for name in ("grpcio", "torch_rpc", LIMITS):
            if name not in missing:
                await self._start_peer(name, name)
        await self._start_peer("torch_rpc_tcp", "torch_rpc", tcp=True)
        for name in ("redis", "redis_c"):
            if name not in missing:
                await self._start_redis(name)
        await asyncio.gather(*(each.client.ask("fill") for each in self.systems.values()))
        self.num_steps = dict.fromkeys(self.systems, 0)
        return missing

    async def run(self, *, budget_s: float, least: int = 0) -> Turns:
        """Run the rounds there is time for, at least one; return them."""
        self.found = {case: [] for case in self._cases()}
        others = [Case(LIMITS, part) for part in LIMIT_PARTS[1:]]
        cases = {str(case): case for case in self.found if case not in others}
        turns = Turns(list(cases), budget_s=budget_s, least=least)
        for name in turns:
            for case, measured in (await self._turn(cases[name])).items():
                self.found[case].append(measured)
        return turns

    async def wrong_tables(self) -> list[str]:
        """Return the systems whose tables are not what the steps make of the first content."""
        return [
            name
            for name, system in self.systems.items()
            if name != LIMITS
            and await system.client.ask("digest")
            != self._work.expected_digest(self.num_steps[name])
        ]

    def _cases(self) -> list[Case]:
        depths = [
            Case(system, depth) for system in self.systems for depth in DEPTHS.get(system, ())
        ]
        return depths + [Case(LIMITS, part) for part in LIMIT_PARTS]

    async def _turn(self, case: Case) -> dict[Case, Measured]:
        """Run a burst of a case, or of all parts of the limits."""
        steps = max(2, self._steps // SLOWNESS.get(case.system, 1))
        system = self.systems[case.system]
        if case.system == LIMITS:
            parts = await system.client.ask("parts", steps=steps)
            return {Case(LIMITS, part): Measured(Burst(**parts[part])) for part in LIMIT_PARTS}
        self.num_steps[case.system] += steps
        before = self._cpu_s(system)
        answer = await system.client.ask("burst", steps=steps, in_flight=case.about)
        used = [
            1e3 * (after - begun) / steps
            for after, begun in zip(self._cpu_s(system), before, strict=True)
        ]
        return {case: Measured(Burst(**answer), *used)}

    @staticmethod
    def _cpu_s(system: System) -> tuple[float, float]:
        """Return the processor time so far, of a system's servers and of its client."""
        return sum(map(cpu_s, system.servers)), cpu_s(system.client.pid)

    async def _start_ours(
        self, name: str, settings: dict[str, str] | None = None, *, wire: str = "float32"
    ) -> None:
        environment = self._processes.environments.ours
        job = await self._processes.start_job(name, settings=settings)
        address = {**job.address, "wire": wire}
        client = await self._processes.drive("ours", self._work, address, environment)
        self.systems[name] = System(client, job.pids)

    async def _start_peer(self, name: str, module: str, **options: bool) -> None:
        given = self._processes.environments
        environment = given.ours if name == LIMITS else given.peers
        server, address = await self._processes.serve(
            module, self._work, environment, **options
        )
        client = await self._processes.drive(module, self._work, address, environment)
        self.systems[name] = System(client, [server.pid])

    async def _start_redis(self, name: str) -> None:
        redis = await self._processes.start_redis(name, bind="127.0.0.1")
        address = {"url": redis.admin_url, "hiredis": name == "redis_c"}
        environment = self._processes.environments.peers
        client = await self._processes.drive("redis", self._work, address, environment)
        self.systems[name] = System(client, [redis.pid] if redis.pid else [])


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
        processes = Processes(stack, logs, pinned=True)
        bench = Bench(work, steps, processes)
        missing = await bench.start()
        await bench.run(budget_s=0.0)  # every path once, for caches and compilers
        left_s = budget_s - (time.perf_counter() - begin)
        turns = await bench.run(budget_s=left_s, least=least_rounds(budget_s))
        wrong = await bench.wrong_tables()
        if wrong:
            raise WrongTableError(wrong)
        for system in bench.systems.values():
            await system.client.end()
    return suite_of(
        "path",
        rows=rows_of(bench.found, work, turns),
        headlines=headlines_of(bench.found, turns),
        method=METHOD,
        turns={"path": turns},
        details={
            "work": asdict(work),
            "steps of a burst": steps,
            "missing": missing,
            "settings": processes.environments.settings(),
        },
    )


WORK = Work(rows=26_624, dim=16, table_rows=1_000_000)


def measure(*, budget_s: float, work: Work = WORK, steps: int = STEPS) -> Suite:
    """Measure the whole path for about ``budget_s`` seconds, with the start of the systems."""
    return asyncio.run(run(work, steps, budget_s))


if __name__ == "__main__":
    sys.exit(run_script(measure, description=__doc__, budget_s=BUDGET_S))
