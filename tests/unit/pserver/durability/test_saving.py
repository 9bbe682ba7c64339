"""A snapshot is written beside the training; whatever goes wrong leaves what there was."""

import asyncio
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.pserver.commands.histories import Deed, History, Replica, specs_of

from paramfleet_pserver.commands.records import Make
from paramfleet_pserver.commands.snapshot.writing import take_image
from paramfleet_pserver.durability.saving import save_snapshot
from paramfleet_pserver.durability.snapshot_files import (
    SnapshotDraft,
    SnapshotFile,
    newest_snapshot,
    read_snapshot,
)
from paramfleet_pserver.tables.table import SparseTable
from paramfleet_shared.errors.tables import TableMemoryError
from paramfleet_shared.net.wire.message import encode
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_shared.values.amounts import Memory

if TYPE_CHECKING:
    from types import FrameType

JOB = "a job, epoch 1"
PIECE_BYTES = 256


class Training:
    """A training with a snapshot of its beginning."""

    def __init__(self, folder: Path) -> None:
        self.one = Replica("async", 2, rate="full", elastic=False)
        self.folder = folder
        self.position = 0
        self._maker = History("async", self.one.store)

    async def begin(self) -> "Training":
        await self.one.execute([Make(specs_of("async", "float32", "adam"))])
        for _ in range(3):
            self.push()
        await self.save()
        return self

    def push(self) -> None:
        ids, tables, step = [*range(60)], ["rows", "flat"], self.position
        deed = Deed("change", 0, step, ids, step, "float32", tables, 1, False, 0.0, True)
        self.one.machine.max_staleness = None
        self.one.machine.gate.limit(None)
        self.one.machine.execute(self._maker.command(deed))
        self.position += 1

    async def save(self) -> SnapshotFile:
        image = await take_image(self.one.machine, piece_bytes=PIECE_BYTES)
        return await save_snapshot(image, self.folder, self.position, job=JOB)

    async def saved_digest(self) -> str:
        """Return the digest of what the newest snapshot makes."""
        newest = newest_snapshot(self.folder)
        assert newest is not None
        bodies = [b"".join(encode(each)) for each in read_snapshot(newest, job=JOB)]
        again = await Replica.restored(bodies)
        digest = await again.digest(same_owners=True)
        await again.owners.close()
        return digest

    def images(self) -> list[Any]:
        tables = [table for table in self.one.store if isinstance(table, SparseTable)]
        blocks = [block for table in tables for block in table.blocks]
        return [image for block in blocks for image in block.rows._images]

    async def check_nothing_is_left(self, digest: str) -> None:
        """Pass if only the first snapshot is there, and no row is put aside any more."""
        assert [each.name for each in self.folder.iterdir()] == [name_of(3)]
        assert await self.saved_digest() == digest
        await self.one.owners.settle()
        assert not self.images()


async def until(is_so: Callable[[], object]) -> None:
    """Return when something is so; other tasks go on meanwhile."""
    async with asyncio.timeout(LATE_S):
        while not is_so():  # noqa: ASYNC110 - threads and files tell nobody
            await asyncio.sleep(0)


def drafts(folder: Path) -> list[Path]:
    return [*folder.glob("*.draft")]


def name_of(position: int) -> str:
    return f"snapshot-{position:016d}.state"


async def test_what_is_saved_is_of_the_position_though_the_training_goes_on(
    tmp_path: Path,
) -> None:
    training = await Training(tmp_path / "made").begin()
    training.push()
    image = await take_image(training.one.machine, piece_bytes=PIECE_BYTES)
    digest = await training.one.digest(same_owners=True)

    async with asyncio.TaskGroup() as group:
        saving = group.create_task(save_snapshot(image, training.folder, 4, job=JOB))
        while not saving.done():
            training.push()
            await asyncio.sleep(0)

    assert saving.result() == SnapshotFile(4, training.folder / name_of(4))
    assert [each.name for each in training.folder.iterdir()] == [name_of(4)]
    assert training.position > 5
    assert await training.saved_digest() == digest
    assert not training.images()
    await training.one.owners.close()


@contextmanager
def small_files(num_bytes: int) -> Iterator[None]:
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)


@pytest.mark.parametrize("room", [0, 100, 2048, 4096])
async def test_a_full_disk_leaves_the_former_snapshot(tmp_path: Path, room: int) -> None:
    training = await Training(tmp_path).begin()
    digest = await training.one.digest(same_owners=True)
    training.push()

    with small_files(room), pytest.raises(OSError, match="File too large"):
        await training.save()

    await training.check_nothing_is_left(digest)
    assert (await training.save()).position == 4
    await training.one.owners.close()


async def test_a_cancellation_leaves_the_former_snapshot(tmp_path: Path) -> None:
    training = await Training(tmp_path).begin()
    digest = await training.one.digest(same_owners=True)
    training.push()

    async with asyncio.TaskGroup() as group:
        saving = group.create_task(training.save())
        await until(lambda: drafts(tmp_path))
        saving.cancel()

    assert saving.cancelled()
    await training.check_nothing_is_left(digest)
    await training.one.owners.close()


def is_beginning_a_draft() -> bool:
    """Return whether a thread is making a snapshot's file."""
    for frame in sys._current_frames().values():
        at: FrameType | None = frame
        while at is not None:
            if at.f_code is SnapshotDraft.begin.__code__:
                return True
            at = at.f_back
    return False


async def test_a_disk_that_hangs_delays_no_command(tmp_path: Path) -> None:
    training = await Training(tmp_path).begin()
    digest = await training.one.digest(same_owners=True)
    draft = (tmp_path / name_of(4)).with_suffix(".draft")
    os.mkfifo(draft)  # who opens it waits for a reader
    training.push()

    async with asyncio.timeout(LATE_S), asyncio.TaskGroup() as group:
        saving = group.create_task(training.save())
        await until(training.images)
        await until(is_beginning_a_draft)
        for _ in range(20):
            training.push()
            await training.one.settle()
        assert not saving.done()
        saving.cancel()
        await until(lambda: not training.images())  # nothing is put aside any more
        assert not saving.done()
        saving.cancel()
        reader = os.open(draft, os.O_RDONLY | os.O_NONBLOCK)

    os.close(reader)
    await until(lambda: not drafts(tmp_path))
    await training.check_nothing_is_left(digest)
    await training.one.owners.close()


async def test_a_draft_of_a_process_that_was_killed_is_removed(tmp_path: Path) -> None:
    training = await Training(tmp_path).begin()
    (tmp_path / name_of(2)).with_suffix(".draft").write_bytes(b"PFSF")

    await training.save()

    assert not drafts(tmp_path)
    await training.one.owners.close()


async def test_rows_that_there_is_no_memory_to_put_aside_give_the_snapshot_up(
    tmp_path: Path,
) -> None:
    training = await Training(tmp_path).begin()
    digest = await training.one.digest(same_owners=True)
    free = [1 << 40]
    training.one.store._memory = lambda: Memory(total=1 << 40, free=free[0])
    image = await take_image(training.one.machine, piece_bytes=PIECE_BYTES)
    free[0] = 0
    training.push()

    with pytest.raises(TableMemoryError):
        await save_snapshot(image, tmp_path, 4, job=JOB)

    await training.check_nothing_is_left(digest)
    free[0] = 1 << 40
    assert (await training.save()).position == 4
    assert await training.saved_digest() == await training.one.digest(same_owners=True)
    await training.one.owners.close()
