"""The writer in an event loop: appends, waiting, states, the end."""

import asyncio
import contextlib
import errno
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.pserver.durability.log.disks import FailingDisk
from tests.unit.pserver.durability.log.folders import (
    JOB,
    append,
    commands,
    held_by,
    opened,
    writer_of,
)

from paramfleet_pserver.durability.log.core.layout import MAX_COMMAND_BYTES
from paramfleet_pserver.durability.log.disk import Disk
from paramfleet_pserver.durability.log.recovery import open_log
from paramfleet_pserver.durability.log.settings import LogSettings
from paramfleet_pserver.durability.log.writer import LogWriter
from paramfleet_shared.errors.logs import CommandTooLargeError, LogBehindError, LogClosedError
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.testing.patience import LATE_S

FAST = LogSettings(sync_every_s=0.001, retry_s=0.001, segment_bytes=4096)


@contextlib.asynccontextmanager
async def running(path: Path, disk: Disk | None = None) -> AsyncIterator[LogWriter]:
    writer = open_log(path, job=JOB).continue_with(
        term=1, clock=SystemClock(), settings=FAST, disk=disk
    )
    writer.start()
    try:
        yield writer
    finally:
        await writer.close()


async def test_who_waits_is_woken_when_its_command_is_durable(tmp_path: Path) -> None:
    async with running(tmp_path) as writer, asyncio.timeout(LATE_S):
        append(writer, 3)
        later = asyncio.gather(writer.durable(3), writer.durable(1), writer.durable(4))
        await writer.durable(2)
        append(writer, 1)
        await later
        assert writer.durable_position == 4
        await writer.durable(4)

    assert held_by(tmp_path) == commands(4)


async def test_progress_is_told_in_the_loop(tmp_path: Path) -> None:
    seen: asyncio.Queue[tuple[int, str, int]] = asyncio.Queue()
    writer = open_log(tmp_path, job=JOB).continue_with(term=1, clock=SystemClock())

    def tell() -> None:
        seen.put_nowait((writer.durable_position, writer.state, threading.get_ident()))

    writer.start(tell)
    append(writer, 1)
    async with asyncio.timeout(LATE_S):
        assert await seen.get() == (1, "open", threading.get_ident())
    await writer.close()


async def test_a_disk_that_refuses_is_tried_again_by_itself(tmp_path: Path) -> None:
    disk = FailingDisk()
    disk.fail("create", errno.ENOSPC, times=5)
    async with running(tmp_path, disk) as writer, asyncio.timeout(LATE_S):
        append(writer, 2)
        await writer.durable(2)
        assert (writer.state, disk.calls.count("create")) == ("open", 6)


async def test_close_writes_what_waits(tmp_path: Path) -> None:
    async with running(tmp_path) as writer:
        append(writer, 50)

    assert (writer.state, writer.durable_position) == ("closed", 50)
    assert held_by(tmp_path) == commands(50)
    with pytest.raises(LogClosedError, match="up to 50"):
        writer.append(b"more")
    with pytest.raises(LogClosedError):
        writer.check()
    with pytest.raises(LogClosedError):
        await writer.durable(51)


async def test_who_waits_for_a_disk_that_refuses_is_told_of_the_end(tmp_path: Path) -> None:
    disk = FailingDisk()
    disk.fail("create", times=1000)
    async with running(tmp_path, disk) as writer:
        append(writer, 1)
        waiting = asyncio.create_task(writer.durable(1))  # noqa: TID251
        given_up = asyncio.create_task(writer.durable(1))  # noqa: TID251
        await asyncio.sleep(0)
        given_up.cancel()

    with pytest.raises(LogClosedError):
        await waiting


async def test_waits_that_were_given_up_are_not_kept(tmp_path: Path) -> None:
    disk = FailingDisk()
    disk.fail("create", times=100_000)
    async with running(tmp_path, disk) as writer:
        append(writer, 1)
        kept = asyncio.create_task(writer.durable(1))  # noqa: TID251
        await asyncio.sleep(0)
        for _ in range(500):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0):
                    await writer.durable(1)
        assert writer.num_waiting <= 3

    with pytest.raises(LogClosedError):
        await kept


async def test_a_writer_that_was_never_started_gives_the_folder_back(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        writer = writer_of(log)
        await writer.close()
        await writer.close()
        with opened(tmp_path):
            pass


async def test_what_was_carried_over_becomes_durable_without_an_append(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        writer = writer_of(log)
        for _ in range(2):
            append(writer, 2)
            writer.turn()

    async with running(tmp_path) as writer, asyncio.timeout(LATE_S):
        assert writer.position == 4
        await writer.durable(4)


class BrokenDisk(Disk):
    def create(self, path: Path, num_bytes: int) -> int:
        raise ValueError("a defect")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_defect_of_the_thread_is_a_fault_of_the_log(tmp_path: Path) -> None:
    async with running(tmp_path, BrokenDisk()) as writer:
        append(writer, 1)
        await asyncio.to_thread(writer._thread.join, LATE_S)
        assert writer.state == "failing"
        assert "ValueError('a defect')" in str(writer.fault)


def test_memory_is_bounded(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        writer = writer_of(log)
        writer.append(b"x" * 5000)  # a command alone is always taken
        assert writer.state == "behind"
        for act in (lambda: writer.append(b"y"), lambda: writer.check(1)):
            with pytest.raises(LogBehindError, match="5,000 bytes wait for the disk"):
                act()
        assert writer.waiting_bytes == 5000
        writer.turn()
        assert (writer.waiting_bytes, writer.state) == (0, "open")
        writer.check(4000)
        assert writer.append(b"y") == 2


def test_a_command_that_no_batch_can_hold_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        writer = writer_of(log)
        with pytest.raises(CommandTooLargeError, match="1,073,741,825 bytes"):
            writer.check(MAX_COMMAND_BYTES + 1)


def test_a_command_may_come_in_parts(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        writer = writer_of(log)
        writer.append(b"head", memoryview(b"x" * 3000), bytearray(b"tail"))
        writer.append()
        writer.turn()

    assert held_by(tmp_path) == [b"head" + b"x" * 3000 + b"tail", b""]
