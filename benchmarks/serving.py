"""Lookups at a server of a stream, beside pulls of a pserver: ``python benchmarks/serving.py``.

See README.md beside this file.
"""

import asyncio
import os
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cores import cores_of, pin_thread
from harness import Suite, run_script, suite_of
from paramfleet.serving import Client
from paramfleet_shared.deltas.records import Change, StreamTable, TableChange
from paramfleet_shared.deltas.writer import StreamWriter
from paramfleet_shared.errors import UnavailableError
from paramfleet_shared.net.tokens import entry_of
from paramfleet_shared.system.clock import SystemClock
from peer.children import Child, cpu_s
from peer.jobs import Processes
from peer.ours import OursTable, OursWorker
from ports import free_port
from rounds import Ratio, Rounds, Turn

BUDGET_S = 60.0

TABLE_ROWS, DIM = 1_000_000, 16
ROWS = 1_000
"""Of a lookup."""
CALLS = 200
"""Of a turn."""
CHANGED_ROWS = 20_000
CHANGES_A_S = 5.0
"""In the turns that look up beside changes."""
START_S = 60.0

TOKEN = "pf-read-" + "b" * 43

PULL, LOOKUP, BESIDE = "pull", "lookup", "lookup beside changes"

METHOD = (
    f"A turn asks {CALLS} times, one after the other, for the rows of {ROWS:,} unique ids "
    f"drawn uniformly from a table of {TABLE_ROWS:,} rows of {DIM}: by a pull, as a training "
    "process makes one (route, call, join; of a pserver without the Unix socket), and by a "
    "lookup of fleet.serving.Client in its raw form. Both are through loopback TCP, from one "
    "thread of one process; the servers are a process each. A round runs every case; a ratio "
    "is of one round, '_cpu' of processor time of the client and the server. In the turns "
    f"beside changes a thread publishes {CHANGES_A_S:g} changes of {CHANGED_ROWS:,} rows a "
    "second; latencies are of all lookups of these turns. The apply time is the server's own: "
    "from taking a change to its effect, lookups in between included. The time until it is "
    "served is from the end of a publication until a lookup is answered with its number, the "
    "folder's poll of 0.01 s included."
)


class Bench:
    """A pserver, a server of a stream, and a client of each.

    Args:
        folder: For the stream and the logs.
        processes: Starts processes.
    """

    def __init__(self, folder: Path, processes: Processes) -> None:
        self._folder = folder
        self._processes = processes
        self._numbers = np.random.default_rng(5)
        self._ids = np.unique(self._numbers.integers(1, 1 << 62, TABLE_ROWS))
        self._writer = StreamWriter(folder / "stream", clock=SystemClock())
        self.latencies_s: dict[str, list[float]] = {LOOKUP: [], BESIDE: []}
        self.served_s: list[float] = []

    async def start(self) -> None:
        """Start both servers, with the same rows."""
        settings = {"PARAMFLEET_PSERVER__NEARBY": "false"}
        job = await self._processes.start_job("serving", settings=settings)
        self._table = await asyncio.to_thread(self._join, job.address)
        await asyncio.to_thread(self._begin)
        self._server = await self._start_server()
        self._pids = {PULL: job.pids, LOOKUP: [self._server.pid], BESIDE: [self._server.pid]}

    def measure(self, budget_s: float) -> Rounds:
        """Run the rounds there is time for."""
        pin_thread(cores_of("client"))
        cases: Mapping[str, Callable[[], float]] = {
            PULL: self._pull,
            LOOKUP: partial(self._look_up, LOOKUP),
            BESIDE: self._look_up_beside,
        }
        for act in cases.values():  # every path once, for caches and compilers
            act()
        for each in (*self.latencies_s.values(), self.served_s):
            each.clear()
        rounds = Rounds(list(cases), budget_s=budget_s)
        for name in rounds.turns:
            before = self._cpu_s(name)
            rate = cases[name]()
            rounds.figures[name].append(Turn(rate, (self._cpu_s(name) - before) / CALLS))
        return rounds

    def apply_ms(self) -> float:
        """Return the mean of milliseconds that a change took in the server."""
        request = urllib.request.Request(f"{self._url}/metrics", headers=self._headers)
        with urllib.request.urlopen(request, timeout=10.0) as answer:
            lines = answer.read().decode().splitlines()
        found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        seconds = float(found["paramfleet_serving_apply_seconds_total"])
        return 1e3 * seconds / max(1.0, float(found["paramfleet_serving_changes_total"]))

    def close(self) -> None:
        """Close the clients."""
        self._client.close()
        self._table.close()

    def _join(self, address: Mapping[str, str]) -> OursTable:
        environment = self._processes.environments.ours
        worker = OursWorker(address["redis"], address["job"], environment=environment)
        table = worker.table("rows", DIM)
        for start in range(0, len(self._ids), 50_000):
            table.pull(self._ids[start : start + 50_000])
        return table

    def _begin(self) -> None:
        rows = self._numbers.normal(size=(len(self._ids), DIM)).astype(np.float32)
        table = StreamTable(name="rows", dim=DIM)
        self._writer.begin([table], [("rows", self._ids, rows)], {}, moment=_now())

    async def _start_server(self) -> Child:
        tokens, port = self._folder / "tokens", free_port()
        tokens.write_text(entry_of(TOKEN, "read", "benchmark").to_line(), encoding="ascii")
        arguments = ["-m", "paramfleet_serving", f"--port={port}", "--poll-s=0.01"]
        arguments += [f"--from={self._folder / 'stream'}", "--log-level=WARNING"]
        environment = self._processes.environments.ours
        environment = {**environment, "PARAMFLEET_TOKENS_FILE": str(tokens)}
        child = await self._processes.start("serve", arguments, environment, "server")
        self._url = f"http://127.0.0.1:{port}"
        self._headers = {"Authorization": f"Bearer {TOKEN}"}
        self._client = Client(self._url, token=TOKEN, timeout_s=30.0)
        deadline = time.perf_counter() + START_S
        while True:
            try:
                await asyncio.to_thread(self._client.version)
            except UnavailableError:
                if time.perf_counter() > deadline:
                    raise
                await asyncio.sleep(0.1)
                continue
            return child

    def _pull(self) -> float:
        batches, begun = self._batches(), time.perf_counter()
        for ids in batches:
            self._table.pull(ids)
        return CALLS / (time.perf_counter() - begun)

    def _look_up(self, name: str) -> float:
        batches, begun, took = self._batches(), time.perf_counter(), self.latencies_s[name]
        for ids in batches:
            at = time.perf_counter()
            self._client.lookup({"rows": ids})
            took.append(time.perf_counter() - at)
        return CALLS / (time.perf_counter() - begun)

    def _look_up_beside(self) -> float:
        ended = threading.Event()
        thread = threading.Thread(target=self._publish, args=(ended,))
        thread.start()
        try:
            return self._look_up(BESIDE)
        finally:
            ended.set()
            thread.join()

    def _publish(self, ended: threading.Event) -> None:
        pin_thread(cores_of("client"))
        with Client(self._url, token=TOKEN, timeout_s=30.0) as client:
            while True:
                number = self._writer.publish(self._change())
                begun = time.perf_counter()
                while client.version().number < number:
                    time.sleep(0.002)  # noqa: TID251 (beside what is measured)
                self.served_s.append(time.perf_counter() - begun)
                if ended.wait(1 / CHANGES_A_S):
                    return

    def _change(self) -> Change:
        ids = np.sort(self._numbers.choice(self._ids, CHANGED_ROWS, replace=False))
        rows = self._numbers.normal(size=(CHANGED_ROWS, DIM)).astype(np.float32)
        part = TableChange(ids, rows, np.empty(0, np.int64))
        return Change(_now(), {"rows": part}, {})

    def _batches(self) -> list[NDArray[np.int64]]:
        places = np.random.default_rng().integers(0, len(self._ids), (CALLS, ROWS))
        return [np.unique(self._ids[each]) for each in places]

    def _cpu_s(self, name: str) -> float:
        return sum(map(cpu_s, self._pids[name])) + cpu_s(os.getpid())


def _now() -> float:
    return datetime.now(UTC).timestamp()


async def run(budget_s: float) -> Suite:
    """Start both, and measure."""
    begun = time.perf_counter()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="serving-")))
        bench = Bench(folder, Processes(stack, folder, pinned=True))
        await bench.start()
        left = budget_s - (time.perf_counter() - begun)
        rounds = await asyncio.to_thread(bench.measure, left)
        apply_ms = await asyncio.to_thread(bench.apply_ms)
        await asyncio.to_thread(bench.close)
    return _suite(bench, rounds, apply_ms)


def _suite(bench: Bench, rounds: Rounds, apply_ms: float) -> Suite:
    quantiles = {
        name: {q: 1e3 * float(np.quantile(took, q)) for q in (0.5, 0.99, 0.999)}
        for name, took in bench.latencies_s.items()
    }
    rows: list[dict[str, Any]] = [
        {
            "case": name,
            "calls_per_s": rounds.figure(name),
            "cpu_ms_per_call": 1e3 * rounds.cpu_s(name),
            "vs_pull": rounds.ratio(name, PULL),
            "vs_pull_cpu": rounds.cpu_ratio(name, PULL),
        }
        for name in (PULL, LOOKUP, BESIDE)
    ]
    rows += [
        {"latency": name, "median_ms": each[0.5], "p99_ms": each[0.99], "p999_ms": each[0.999]}
        for name, each in quantiles.items()
    ]
    served = Ratio.of([1e3 * each for each in bench.served_s])
    rows.append({"change": f"{CHANGED_ROWS:,} rows", "apply_ms": apply_ms, "served_ms": served})
    return suite_of(
        "serving",
        rows=rows,
        headlines={
            "lookup_vs_pull": rounds.headline(LOOKUP, PULL),
            "lookup_vs_pull_cpu": rounds.cpu_headline(LOOKUP, PULL),
            "lookups_per_s": rounds.rate_headline(LOOKUP),
        },
        method=METHOD,
        turns={"serving": rounds.turns},
        details={"latencies_ms": quantiles, "apply_ms": apply_ms},
    )


def measure(*, budget_s: float) -> Suite:
    """Measure for about ``budget_s`` seconds, with the start of the processes."""
    return asyncio.run(run(budget_s))


if __name__ == "__main__":
    sys.exit(run_script(measure, description=__doc__ or "", budget_s=BUDGET_S))
