"""A process of the job whose results a program reads slowly: a real process, a real pipe."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.system.processes.ending import VARIABLE as ENDINGS
from paramfleet_shared.system.processes.keeping import Keeper
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_worker.core.events import ProcessName
from paramfleet_worker.process.children.child import READ_BYTES, Child
from paramfleet_worker.process.streams import Streams
from paramfleet_worker.process.terminal import outlets
from paramfleet_worker.process.terminal.console import Console

ENOUGH = 1 << 20
"""Bytes that wait before a process is to wait, too."""

FIRST = ProcessName("worker", 0)

NUM_LINES = 8 * ENOUGH // 16

RESULT = b"".join(b"%15d\n" % number for number in range(NUM_LINES))

WRITES = f"""
import sys
sys.stdout.writelines(f"{{number:15d}}\\n" for number in range({NUM_LINES}))
"""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlets, "ENOUGH_BYTES", ENOUGH)


def reading(descriptor: int) -> tuple[threading.Thread, bytearray]:
    read = bytearray()

    def run() -> None:
        while data := os.read(descriptor, 1 << 16):
            read.extend(data)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, read


async def until(holds: Callable[[], bool]) -> None:
    clock = SystemClock()
    async with asyncio.timeout(LATE_S):
        while not holds():
            await clock.sleep(0.01)


@pytest.mark.slow
async def test_a_process_waits_with_its_results_for_a_program_that_reads_them_later(
    tmp_path: Path,
) -> None:
    source, sink = os.pipe()
    keeper = Keeper()
    with os.fdopen(sink, "wb", 0) as out, (tmp_path / "err").open("wb") as err:
        console = Console(out, err, {})
        child = Child(
            FIRST,
            [sys.executable, "-c", WRITES],
            environment=read_environment(),
            log=tmp_path / "workerlog.0",
            console=console,
            keeper=keeper,
        )
        await until(lambda: not console.takes_results)
        await asyncio.sleep(0.2)  # so long it would read on
        assert child.poll() is None
        assert child.log.stat().st_size <= ENOUGH + 2 * READ_BYTES

        thread, read = reading(source)
        await until(lambda: child.poll() is not None)
        await child.drained(LATE_S)
        console.close(keeps_results=True)
        child.close()
    thread.join(LATE_S)
    os.close(source)
    keeper.close()

    assert bytes(read) == RESULT
    assert child.log.read_bytes() == RESULT
    assert (tmp_path / "err").read_bytes() == b""


@pytest.mark.slow
async def test_of_a_process_that_has_ended_no_file_stays_but_its_log(tmp_path: Path) -> None:
    endings = tmp_path / "endings"
    endings.mkdir()
    keeper = Keeper()
    with (tmp_path / "out").open("wb", 0) as out, (tmp_path / "err").open("wb") as err:
        console = Console(out, err, {})
        child = Child(
            ProcessName("worker", 1),
            [sys.executable, "-c", "import paramfleet; raise KeyError(3)"],
            environment={**read_environment(), ENDINGS: str(endings)},
            log=tmp_path / "workerlog.1",
            console=console,
            keeper=keeper,
            endings=endings,
        )
        await until(lambda: child.poll() is not None)
        await child.drained(LATE_S)
        ending = child.ending

        child.close()

        console.close(keeps_results=False)
    keeper.close()
    assert ending is not None
    assert ending.text == "KeyError: 3"
    assert not list(endings.iterdir())


@pytest.mark.slow
async def test_what_a_process_left_is_read_when_it_has_ended_whoever_takes_it(
    tmp_path: Path,
) -> None:
    source, sink = os.pipe()
    keeper = Keeper()
    with os.fdopen(sink, "wb", 0) as out, (tmp_path / "err").open("wb") as err:
        console = Console(out, err, {})
        console.result(b"x" * (2 * ENOUGH))
        assert not console.takes_results
        child = Child(
            FIRST,
            [sys.executable, "-c", "print('first', flush=True); print('last')"],
            environment=read_environment(),
            log=tmp_path / "workerlog.0",
            console=console,
            keeper=keeper,
        )
        await until(lambda: child.poll() is not None)

        await child.drained(LATE_S)

        assert child.log.read_bytes() == b"first\nlast\n"
        child.close()
        os.close(source)
        console.close(keeps_results=False)
    keeper.close()


@pytest.mark.slow
def test_a_worker_that_another_one_starts_waits_with_its_results_too(tmp_path: Path) -> None:
    source, sink = os.pipe()
    with os.fdopen(sink, "wb", 0) as out, (tmp_path / "err").open("wb") as err:
        console = Console(out, err, {})
        streams = Streams([FIRST], tmp_path, console)
        path, _ = streams.paths_of(FIRST)
        writes = threading.Thread(target=lambda: Path(path).write_bytes(RESULT))
        writes.start()
        writes.join(0.5)
        assert writes.is_alive(), "what doesn't fit waits"
        assert streams.log_of(FIRST).stat().st_size <= ENOUGH + 2 * READ_BYTES

        thread, read = reading(source)
        writes.join(LATE_S)
        streams.drain(LATE_S)
        console.close(keeps_results=True)
    thread.join(LATE_S)
    os.close(source)

    assert bytes(read) == RESULT
