"""Nothing that a benchmark starts outlives it, however it ends."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import run
from paramfleet_shared.system.processes.keeping import tied

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's"),
]

WITHIN_S = 20.0

SUITE = """
import asyncio, os, sys
from pathlib import Path

sys.path.insert(0, {benchmarks!r})
from nursery.client import Nursery
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.discovery.redis.embedded import EmbeddedRedis
from peer.children import start_child

STAY = "import threading; threading.Event().wait()"

async def main():
    folder = Path({folder!r})
    redis = EmbeddedRedis(folder, clock=SystemClock())
    await redis.start()
    child = await start_child("child", ["-c", STAY], read_environment(), folder)
    (folder / "stay.py").write_text(STAY)
    async with Nursery(folder) as nursery:
        fork = await nursery.start("fork", [str(folder / "stay.py")], dict())
        keeper = redis._keeper.pid
        pids = [os.getpid(), keeper, redis.pid, child.pid, nursery._process.pid, fork.pid]
        (folder / "pids").write_text(" ".join(map(str, pids)) + "\\n")
        await asyncio.Event().wait()

asyncio.run(main())
"""
"""Tells its own process id, its keeper's, then those of what it has started."""

RUN = """
import sys
from pathlib import Path

sys.path.insert(0, {benchmarks!r})
import run

run.FOLDER = Path({folder!r})
run.run_suite("suite", [], limit_s=300.0)
"""


@pytest.mark.parametrize("victim", ["suite", "run"])
def test_nothing_outlives_a_suite_or_its_runner_that_is_killed(
    tmp_path: Path, victim: str
) -> None:
    os.mkfifo(tmp_path / "pids")
    words = {"benchmarks": str(Path(run.__file__).parent), "folder": str(tmp_path)}
    (tmp_path / "suite.py").write_text(SUITE.format(**words))
    (tmp_path / "run.py").write_text(RUN.format(**words))
    with subprocess.Popen(
        tied([sys.executable, str(tmp_path / f"{victim}.py")]), start_new_session=True
    ) as process:
        pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
        pidfds = [os.pidfd_open(pid) for pid in pids]
        signal.pidfd_send_signal(pidfds[1], signal.SIGKILL)

        process.kill()

    try:
        left = [
            pid
            for pid, descriptor in zip(pids, pidfds, strict=True)
            if not select.select([descriptor], [], [], WITHIN_S)[0]
        ]
        assert left == []
    finally:
        for descriptor in pidfds:
            if not select.select([descriptor], [], [], 0)[0]:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)
