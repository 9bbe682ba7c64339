"""The log of real processes that are killed, on disks that are full."""

import asyncio
import random
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.integration.pserver import log_appender
from tests.integration.pserver.log_appender import JOB, command

from paramfleet_pserver.durability.log.recovery import OpenedLog, open_log
from paramfleet_pserver.durability.log.settings import LogSettings
from paramfleet_pserver.durability.log.writer import LogWriter
from paramfleet_shared.errors.logs import DiskFullError, LogInUseError
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.testing.patience import LATE_S

pytestmark = pytest.mark.slow

KILLS = int(read_environment().get("LOG_KILLS", "5"))
SMALL = LogSettings(segment_bytes=64 << 10, batch_bytes=8 << 10, retry_s=0.01)


@contextmanager
def opened(path: Path) -> Iterator[OpenedLog]:
    log = open_log(path, job=JOB)
    try:
        yield log
    finally:
        log.close()


def start_appender(path: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        tied([sys.executable, log_appender.__file__, str(path)]), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    return process


def killed_after(path: Path, reports: int) -> int:
    """Kill an appender after so many of its reports; return the last of them."""
    process = start_appender(path)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(reports)]
    assert all(lines), "it has ended by itself"
    process.kill()
    lines += process.stdout.read().splitlines(keepends=True)
    process.stdout.close()
    process.wait()
    said = [int(line.split()[0]) for line in lines if line.endswith(b"\n")]
    return said[-1]


def test_what_was_reported_is_there_after_each_kill(tmp_path: Path) -> None:
    rng = random.Random(11)
    durable = 0
    for _ in range(KILLS):
        durable = max(durable, killed_after(tmp_path, rng.randrange(1, 40)))
        with opened(tmp_path) as log:
            position = 0
            for position, found in enumerate(log.commands(1), 1):
                assert found.position == position
                assert found.body == command(position)
            assert position == log.last_position
            assert position >= durable
    assert durable > 100
    assert len(list(tmp_path.glob("segment-*.log"))) > KILLS


def test_a_running_process_keeps_others_out_until_it_ends(tmp_path: Path) -> None:
    process = start_appender(tmp_path)
    assert process.stdout is not None
    with process, process.stdout:
        assert process.stdout.readline()
        with pytest.raises(LogInUseError, match=f"process {process.pid}"):
            open_log(tmp_path, job=JOB)
        process.kill()
        process.wait()

    with opened(tmp_path) as log:
        assert log.last_position > 0


def writer_of(path: Path, on_progress: Callable[[], None] | None = None) -> LogWriter:
    log = open_log(path, job=JOB)
    writer = log.continue_with(term=1, clock=SystemClock(), settings=SMALL)
    writer.start(on_progress)
    return writer


async def append_until_full(writer: LogWriter) -> int:
    """Append until the disk has no room; return how many commands were appended."""
    async with asyncio.timeout(LATE_S):
        while writer.state != "full":
            if writer.waiting_bytes < 64 << 10:
                writer.append(command(writer.position + 1))
            await asyncio.sleep(0)
    with pytest.raises(DiskFullError, match=str(writer.path)):
        writer.check()
    return writer.position


def check_whole(path: Path, count: int) -> None:
    with opened(path) as log:
        assert [found.body for found in log.commands(1)] == list(
            map(command, range(1, count + 1))
        )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a file system of 512 KiB, half of it taken."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        tied(["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(folder)]),
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"this system mounts no small file system: {mounted.stderr.strip()}")
    try:
        (folder / "filler").write_bytes(bytes(256 << 10))
        yield folder
    finally:
        subprocess.run(tied(["umount", "-l", str(folder)]), check=True)


async def test_a_full_disk_refuses_and_goes_on_when_there_is_room(small_disk: Path) -> None:
    writer = writer_of(small_disk / "log")

    count = await append_until_full(writer)
    held = writer.durable_position
    assert 0 < held < count
    assert not list((small_disk / "log").glob("*.draft"))
    (small_disk / "filler").unlink()
    async with asyncio.timeout(LATE_S):
        await writer.durable(count)
    writer.check()
    await writer.close()

    check_whole(small_disk / "log", count)


async def test_a_full_disk_goes_on_when_the_log_is_truncated(small_disk: Path) -> None:
    writer = writer_of(small_disk / "log")
    count = await append_until_full(writer)

    writer.truncate(writer.durable_position)
    async with asyncio.timeout(LATE_S):
        await writer.durable(count)
    await writer.close()

    log = open_log(small_disk / "log", job=JOB, held=count)
    assert log.last_position == count
    log.close()


def test_a_process_that_dies_on_a_full_disk_leaves_what_was_reported(
    small_disk: Path,
) -> None:
    (small_disk / "filler").unlink()
    with start_appender(small_disk / "log") as process:
        assert process.stdout is not None
        line = b""
        while not line.endswith(b" full\n"):
            line = process.stdout.readline()
            assert line, "it has ended by itself"
        process.kill()

    with opened(small_disk / "log") as log:
        found = [each.body for each in log.commands(1)]
    assert len(found) >= int(line.split()[0]) > 0
    assert found == list(map(command, range(1, len(found) + 1)))


async def test_a_limit_of_the_process_is_a_full_disk(tmp_path: Path) -> None:
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    full = threading.Event()
    writer = writer_of(tmp_path, on_progress=full.set)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40 << 10, former[1]))
    try:
        writer.append(command(1))
        await asyncio.to_thread(full.wait, LATE_S)
        with pytest.raises(DiskFullError, match="File too large"):
            writer.check()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)
    async with asyncio.timeout(LATE_S):
        await writer.durable(1)
    await writer.close()

    check_whole(tmp_path, 1)
