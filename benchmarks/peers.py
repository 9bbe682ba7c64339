"""Pull and push beside grpcio and torch's RPC: ``python benchmarks/peers.py``.

Every system has one server process and one client process on loopback, a table of the
same content, and the same steps: pull the rows of unique ids, push a gradient for each,
SGD. One round after the other runs a burst of every system, so that whatever else the
machine does disturbs all of them alike. See README.md beside this file.
"""

import argparse
import asyncio
import json
import os
import platform
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from paramfleet_shared.clock import SystemClock
from paramfleet_shared.config import read_environment
from paramfleet_shared.discovery.embedded import EmbeddedRedis
from paramfleet_worker.core.environment import runtime_environment
from peer.children import Child, ChildFailedError, cpu_s, start_child
from peer.report import OURS, row_of, summary, table_lines
from peer.work import Burst, Work

SYSTEMS = (OURS, "grpcio", "torch_rpc")
IN_FLIGHT = (1, 4)
MAX_ROUNDS_S = 45.0
"""No round begins after this time: a busy machine gets fewer rounds, not a longer run."""

JOB = "peers"


class WrongTableError(Exception):
    """Systems whose tables are not what the steps make of the first content."""

    def __init__(self, systems: list[str]) -> None:
        super().__init__(f"wrong numbers in the table of {', '.join(systems)}")


class System(NamedTuple):
    """One system's two processes."""

    server: Child
    client: Child


class Environments(NamedTuple):
    """What processes find in their environment."""

    ours: dict[str, str]
    peers: dict[str, str]


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=26_624, help="rows of a step")
    parser.add_argument("--dim", type=int, default=16, help="floats of a row")
    parser.add_argument("--table-rows", type=int, default=1_000_000, help="rows of the table")
    parser.add_argument("--steps", type=int, default=40, help="steps of a burst")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--same-allocator",
        action="store_true",
        help="give the peers the allocator's settings that our launcher gives its processes",
    )
    parser.add_argument("--output", type=Path, help="write the final JSON line here too")
    return parser.parse_args()


def environments(*, same_allocator: bool) -> Environments:
    """Return the environment as it is, and with what our launcher adds."""
    inherited = read_environment()
    added = runtime_environment(inherited, num_cores=os.cpu_count() or 1, num_local_roles=2)
    ours = {**inherited, **added}
    return Environments(ours, ours if same_allocator else inherited)


class Benchmark:
    """Starts the systems, and runs the rounds.

    Args:
        work: What a step is.
        stack: Ends what was started.
        logs: Folder of the processes' logs.
    """

    def __init__(self, work: Work, stack: AsyncExitStack, logs: Path) -> None:
        self._work = json.dumps(
            {"rows": work.rows, "dim": work.dim, "table_rows": work.table_rows}
        )
        self._stack = stack
        self._logs = logs
        self.systems: dict[str, System] = {}
        self.num_steps = 0
        """Steps that every system has done."""

    async def start_ours(self, environment: Mapping[str, str]) -> None:
        """Start a job as the launcher does: registry, coordinator, pserver; and a worker."""
        redis = EmbeddedRedis(self._logs, clock=SystemClock())
        await redis.start()
        self._stack.callback(redis.stop)
        job = [f"--job={JOB}", f"--redis={redis.url}", "--log-level=WARNING"]
        sizes = ["--worker-num=1", "--server-num=1"]
        await self._start(
            "coordinator", ["-m", "paramfleet_coordinator", *job, *sizes], environment
        )
        server = await self._start("pserver", ["-m", "paramfleet_pserver", *job], environment)
        client = await self._drive(OURS, {"redis": redis.url, "job": JOB}, environment)
        self.systems[OURS] = System(server, client)

    async def start_peer(self, name: str, environment: Mapping[str, str]) -> None:
        """Start a peer's server and client."""
        address = {"port": free_port()}
        arguments = ["-m", "peer.process", "serve", name, self._work, json.dumps(address)]
        server = await self._start(f"{name}-server", arguments, environment)
        client = await self._drive(name, address, environment)
        self.systems[name] = System(server, client)

    async def prepare(self) -> None:
        """Fill the tables, and run every path once."""
        for system in self.systems.values():
            await system.client.ask("fill")
        for in_flight in IN_FLIGHT:
            await self.round(4, in_flight)

    async def round(self, num_steps: int, in_flight: int) -> dict[str, Burst]:
        """Run a burst of each system, one after the other."""
        found = {}
        for name, system in self.systems.items():
            answer = await system.client.ask("burst", steps=num_steps, in_flight=in_flight)
            found[name] = Burst(**answer)
        self.num_steps += num_steps
        return found

    async def digests(self) -> dict[str, str]:
        """Return the digest of each system's table."""
        return {name: await each.client.ask("digest") for name, each in self.systems.items()}

    def cpu(self) -> dict[str, tuple[float, float]]:
        """Return the processor seconds of each server and client so far."""
        return {
            name: (cpu_s(system.server.pid), cpu_s(system.client.pid))
            for name, system in self.systems.items()
        }

    async def _drive(
        self, name: str, address: Mapping[str, Any], environment: Mapping[str, str]
    ) -> Child:
        arguments = ["-m", "peer.process", "drive", name, self._work, json.dumps(address)]
        return await self._start(f"{name}-client", arguments, environment)

    async def _start(
        self, name: str, arguments: list[str], environment: Mapping[str, str]
    ) -> Child:
        child = await start_child(name, arguments, environment, self._logs)
        self._stack.callback(child.kill)  # for the end after an error
        return child


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run everything; returns the figures.

    Raises:
        ChildFailedError: if a process fails.
        WrongTableError: if a table ends up other than it must.
    """
    work = Work(rows=options.rows, dim=options.dim, table_rows=options.table_rows)
    given = environments(same_allocator=options.same_allocator)
    load = [os.getloadavg()[0]]
    async with AsyncExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peers-")))
        bench = Benchmark(work, stack, logs)
        await bench.start_ours(given.ours)
        for name in SYSTEMS[1:]:
            await bench.start_peer(name, given.peers)
        await bench.prepare()
        num_before, cpu_before = bench.num_steps, bench.cpu()
        bursts = await run_rounds(bench, options)
        num_timed, cpu_after = bench.num_steps - num_before, bench.cpu()
        digests = await bench.digests()
        expected = work.expected_digest(bench.num_steps)
        wrong = [name for name, digest in digests.items() if digest != expected]
        if wrong:
            raise WrongTableError(wrong)
        for system in bench.systems.values():
            await system.client.end()
        for system in bench.systems.values():
            await system.server.end()
    load.append(os.getloadavg()[0])
    runs = {
        (name, in_flight): row_of(found, bursts[OURS, in_flight], rows=work.rows)
        for (name, in_flight), found in bursts.items()
    }
    for line in table_lines(runs):
        print(line)
    return {
        "benchmark": "peers",
        "rows": work.rows,
        "dim": work.dim,
        "table_rows": work.table_rows,
        "steps": options.steps,
        "rounds": len(bursts[OURS, 1]),
        "equal": True,
        **summary(runs),
        "runs": {f"{name}, {in_flight}": run for (name, in_flight), run in runs.items()},
        "cpu_ms_per_step": {
            name: [
                round((after - before) * 1e3 / num_timed, 2)
                for before, after in zip(cpu_before[name], cpu_after[name], strict=True)
            ]
            for name in bench.systems
        },
        "allocator": allocator_of(given),
        **machine(),
        "load_average": [round(value, 1) for value in load],
    }


async def run_rounds(
    bench: Benchmark, options: argparse.Namespace
) -> dict[tuple[str, int], list[Burst]]:
    """Run the rounds there is time for, at least one."""
    bursts: dict[tuple[str, int], list[Burst]] = {
        (name, in_flight): [] for in_flight in IN_FLIGHT for name in SYSTEMS
    }
    start = time.perf_counter()
    for num_done in range(options.rounds):
        if num_done and time.perf_counter() - start > MAX_ROUNDS_S:
            break
        for in_flight in IN_FLIGHT:
            for name, burst in (await bench.round(options.steps, in_flight)).items():
                bursts[name, in_flight].append(burst)
    return bursts


def allocator_of(given: Environments) -> dict[str, dict[str, str]]:
    """Return the settings that differ, or might: glibc's and OpenMP's."""
    names = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "OMP_NUM_THREADS")
    return {
        side: {name: environment[name] for name in names if name in environment}
        for side, environment in given._asdict().items()
    }


def machine() -> dict[str, Any]:
    """Return what the figures belong to."""
    return {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("paramfleet", "grpcio", "torch")},
    }


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure; SIGTERM ends the children too."""
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await measure(options)


def main() -> int:
    """Run the benchmark; returns the exit status."""
    options = parse_arguments()
    for module, remedy in (("grpc", "pip install grpcio"), ("torch", "pip install torch")):
        if find_spec(module) is None:
            print(f"{module} is missing: {remedy}", file=sys.stderr)
            return 2
    try:
        figures = asyncio.run(run(options))
    except (ChildFailedError, WrongTableError) as error:
        print(error, file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        print("stopped by SIGTERM", file=sys.stderr)
        return 1
    if options.output is not None:
        options.output.write_text(json.dumps(figures, indent=1) + "\n")
    print(f"our processes run with what the launcher sets: {figures['allocator']['ours']}")
    print(f"the peers': {figures['allocator']['peers'] or 'the defaults'}")
    print(f"processor ms a step, server and client: {figures['cpu_ms_per_step']}")
    print("the three tables are equal, and right, bit for bit")
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
