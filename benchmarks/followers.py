"""What those who follow a job cost its training: ``python benchmarks/followers.py``.

See README.md beside this file.
"""

import asyncio
import os
import signal
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness import Suite, run_script, suite_of
from jobs import JobShape, TrainingJob, run_jobs, training_jobs, turn_of
from nursery.client import Fork
from paramfleet.serving import Client
from paramfleet_shared.errors import UnavailableError
from paramfleet_shared.net.tokens import new_token
from peer.children import cpu_s
from ports import free_port
from rounds import Ratio, Rounds

if TYPE_CHECKING:
    from conditions import Headline

BUDGET_S = 180.0
QUICK_S = 30.0
SERVERS = 2
CATCH_UP_S = 1.0
START_S = 60.0
ASKED_EVERY_S = 0.05
ASKED_EXAMPLES = 32
NUM_IDS, NUM_SLOTS = 1_000_000, 26
"""Of rank/dnn."""

NONE, KEPT, EXPORTER, SERVER, ASKED = "none", "kept", "exporter", "server", "server, asked"
CASES = (NONE, KEPT, EXPORTER, SERVER, ASKED)

METHOD = (
    "rank/dnn in async with two workers and two pservers, windows of so many steps; a round "
    "has a window of each case. none is another job of the same shape, which nobody follows. "
    "The others are of one job that paramfleet delta follow (exporter) and paramfleet serve "
    "--from job:NAME (server) follow; whose turn it isn't is stopped (SIGSTOP), so that kept "
    "is what pservers do for readers that don't ask. asked: beside that a client looks up the "
    f"ids of {ASKED_EXAMPLES} examples {1 / ASKED_EVERY_S:g} times a second. slowdown is the "
    "samples a second of none over those of the case, training_cpu the processor time of "
    "workers, pservers and coordinator a sample over that of none, each of one round; "
    "follower_cores is the processor time of exporter or server a second. All processes share "
    "the machine's cores, so that with few cores the slowdown has the followers' own processor "
    "time in it."
)


class Followers:
    """Exporter and server of a job, each stopped until its turn.

    Args:
        exporter: Its process.
        server: Its process.
        client: Of the server.
    """

    def __init__(self, exporter: Fork, server: Fork, client: Client) -> None:
        self._forks = {EXPORTER: exporter, SERVER: server, ASKED: server}
        self._client = client

    async def settle(self) -> None:
        """Stop all, once they have begun.

        Raises:
            TimeoutError: if the server has no version in time.
        """
        async with asyncio.timeout(START_S):
            while True:
                try:
                    await asyncio.to_thread(self._client.version)
                except UnavailableError:
                    await asyncio.sleep(0.1)
                else:
                    break
        await asyncio.sleep(CATCH_UP_S)
        for fork in self._forks.values():
            os.kill(fork.pid, signal.SIGSTOP)

    @asynccontextmanager
    async def at_work(self, case: str) -> AsyncIterator[list[int]]:
        """Let those of a case follow in the block.

        Yields:
            Their processes.
        """
        fork = self._forks.get(case)
        if fork is None:
            yield []
            return
        os.kill(fork.pid, signal.SIGCONT)
        try:
            await asyncio.sleep(CATCH_UP_S)
            with self._asked(asks=case == ASKED):
                yield [fork.pid]
        finally:
            os.kill(fork.pid, signal.SIGSTOP)

    def close(self) -> None:
        """Let all go on, to their end."""
        for fork in self._forks.values():
            os.kill(fork.pid, signal.SIGCONT)
        self._client.close()

    @contextmanager
    def _asked(self, *, asks: bool) -> Iterator[None]:
        ended, numbers = threading.Event(), np.random.default_rng(0)

        def ask() -> None:
            while asks and not ended.wait(ASKED_EVERY_S):
                ids = numbers.integers(0, NUM_IDS, (ASKED_EXAMPLES, NUM_SLOTS))
                self._client.lookup({"ids": ids})

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@asynccontextmanager
async def following(job: TrainingJob, folder: Path) -> AsyncIterator[Followers]:
    """Start those who follow a job."""
    token, entry = new_token("read", "benchmark")
    tokens, port = folder / "tokens", free_port()
    tokens.write_text(entry.to_line(), encoding="ascii")
    follow = ["-m", "paramfleet_worker", "delta", "follow", str(folder / "stream")]
    follow += [f"--job={job.name}", f"--redis={job.redis}"]
    serve = ["-m", "paramfleet_serving", f"--from=job:{job.name}", f"--redis={job.redis}"]
    serve += [f"--port={port}", f"--cache-dir={folder}", "--log-level=WARNING"]
    exporter = await job.start_beside("exporter", follow)
    server = await job.start_beside("server", serve, PARAMFLEET_TOKENS_FILE=str(tokens))
    client = Client(f"http://127.0.0.1:{port}", token=token, timeout_s=30.0)
    followers = Followers(exporter, server, client)
    try:
        await followers.settle()
        yield followers
    finally:
        followers.close()
        for fork in (exporter, server):
            os.kill(fork.pid, signal.SIGTERM)


async def _measure(*, budget_s: float) -> tuple[Rounds, dict[str, list[float]]]:
    now = asyncio.get_running_loop().time
    begun, is_quick = now(), budget_s < QUICK_S
    steps = 20 if is_quick else 40
    shape = JobShape(script="ctr", mode="async", servers=SERVERS)
    cores: dict[str, list[float]] = {case: [] for case in CASES}
    with tempfile.TemporaryDirectory(prefix="followers-") as folder:
        async with (
            training_jobs([shape, shape], warm_steps=steps) as (alone, followed),
            following(followed, Path(folder)) as followers,
        ):
            left_s = budget_s - (now() - begun)
            rounds = Rounds(CASES, budget_s=left_s, max_rounds=1 if is_quick else 1000)
            for case in rounds.turns:
                async with followers.at_work(case) as pids:
                    before = sum(map(cpu_s, pids))
                    job = alone if case == NONE else followed
                    window = await job.window(steps=steps)
                    used = sum(map(cpu_s, pids)) - before
                rounds.figures[case].append(turn_of(window))
                cores[case].append(used / window["seconds"])
    return rounds, cores


def measure(*, budget_s: float = BUDGET_S) -> Suite:
    """Measure for about ``budget_s`` seconds."""
    rounds, cores = run_jobs(_measure(budget_s=budget_s))
    rows: list[dict[str, Any]] = [
        {
            "followed by": case,
            "samples_per_s": [round(value) for value in rounds.figure(case)],
            "slowdown": rounds.ratio(NONE, case),
            "training_cpu_us_per_sample": 1e6 * rounds.cpu_s(case),
            "training_cpu": rounds.cpu_ratio(NONE, case),
            "follower_cores": Ratio.of(rounds.turns.kept(cores[case])),
            "rounds": rounds.turns.num_counted,
        }
        for case in CASES
    ]
    headlines: dict[str, Headline | None] = {}
    for case, name in ((EXPORTER, "exporter"), (SERVER, "server")):
        headlines[f"{name}_slowdown"] = rounds.headline(NONE, case)
        headlines[f"{name}_training_cpu"] = rounds.cpu_headline(NONE, case)
    return suite_of(
        "followers", rows=rows, headlines=headlines, method=METHOD, turns={"dnn": rounds.turns}
    )


if __name__ == "__main__":
    sys.exit(run_script(measure, description=__doc__ or "", budget_s=BUDGET_S))
