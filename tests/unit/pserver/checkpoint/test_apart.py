"""A save that was given up has ended, with all that it writes, before the next one begins."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paramfleet_pserver.checkpoint.apart import Apart, Taken
from paramfleet_pserver.checkpoint.gathering import Gathering
from paramfleet_pserver.checkpoint.images import Marks, StoreImage
from paramfleet_pserver.checkpoint.storage import Saved, save_tables
from paramfleet_pserver.commands.removing import remove_rows
from paramfleet_pserver.tables.owners import Owners
from paramfleet_pserver.tables.table import SparseTable
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_pserver.waiting.asking import Asking
from paramfleet_shared.checkpoint.cuts import FormerSaveError, SaveGoneError
from paramfleet_shared.files import tensorfile
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.tables.rows.routing import route
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec
from paramfleet_shared.testing.patience import LATE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from pathlib import Path

    from paramfleet_shared.checkpoint.increments import RemovedIds
    from paramfleet_shared.checkpoint.manifest import SavedFile

ROWS = TableSpec(
    name="t", kind="sparse", dim=3, num_shards=8, optimizer=OptimizerSpec(rule="adagrad")
)
FLAT = TableSpec(name="flat", kind="dense", size=1000)


class Stall:
    """A disk that stalls in the middle of the first file, until it is let go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Event()
        self.over = threading.Event()
        real, first = tensorfile._pieces, iter([True])

        def pieces(arrays: Any, names: Any) -> Iterator[Any]:
            stalls = next(first, False)
            for piece in real(arrays, names):
                yield piece
                if stalls and not self.begun.is_set():
                    self.begun.set()
                    assert self.over.wait(LATE_S)

        monkeypatch.setattr(tensorfile, "_pieces", pieces)

    async def is_on(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, LATE_S)


@asynccontextmanager
async def tables(num_rows: int = 2000) -> AsyncIterator[tuple[TableStore, Owners, SparseTable]]:
    owners, store = Owners(2), TableStore(shards=range(8), num_shards=8, num_owners=2)
    table = store.build(ROWS)
    assert isinstance(table, SparseTable)
    store.put([table, store.build(FLAT)])
    routed = route(np.arange(num_rows), 8)
    await owners.run(table.create_jobs(RowIds(routed.ids, routed.offsets)))
    yield store, owners, table
    await owners.close()


def start(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(work)


def train(table: SparseTable) -> None:
    for block in table.blocks:
        ids = block.rows.ids().copy()
        block.rows.push(ids, np.ones((len(ids), 3), np.float32), lr=0.1, step=1)


def none_gathered() -> Gathering:
    return Gathering(Asking(SystemClock()), [], {})


def beginning(
    store: TableStore, owners: Owners, folder: Path, saves: list[Saved]
) -> Callable[[], Coroutine[Any, Any, Taken]]:
    async def begin() -> Taken:
        image = StoreImage(store, owners)
        await image.begun()

        async def write() -> Message:
            gathering = none_gathered()
            try:
                saves.append(await save_tables(image, folder, server=0, gathering=gathering))
            finally:
                await image.end()
            return Message()

        return Taken(answer=Message(), written=start(write()))

    return begin


async def test_the_next_save_writes_its_files_when_the_former_one_writes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stall, apart, saves = Stall(monkeypatch), Apart(), list[Saved]()
    async with tables() as (store, owners, table):
        begin = beginning(store, owners, tmp_path, saves)
        await apart.take("one", begin, patience_s=LATE_S)
        await stall.is_on()
        train(table)
        taking = start(apart.take("two", begin, patience_s=LATE_S))
        await asyncio.wait((taking,), timeout=0.2)
        assert not taking.done()
        stall.over.set()
        await taking
        assert await apart.written("two", wait_s=LATE_S) is not None

    (saved,) = saves
    for file in saved.files:
        content = (tmp_path / file.name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == file.sha256


async def test_a_save_waits_no_longer_than_it_may_and_the_one_after_it_waits_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stall, apart, saves = Stall(monkeypatch), Apart(), list[Saved]()
    async with tables() as (store, owners, _):
        begin = beginning(store, owners, tmp_path, saves)
        await apart.take("one", begin, patience_s=LATE_S)
        await stall.is_on()
        for name in ("two", "three"):
            with pytest.raises(FormerSaveError, match=name):
                await apart.take(name, begin, patience_s=0.05)
        stall.over.set()
        await apart.take("four", begin, patience_s=LATE_S)
        assert await apart.written("four", wait_s=LATE_S) is not None
        with pytest.raises(SaveGoneError):
            await apart.written("one", wait_s=0)
    assert len(saves) == 1


async def test_who_gives_a_save_up_at_its_last_file_waits_until_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stall = Stall(monkeypatch)
    async with tables(num_rows=0) as (store, owners, _):
        image = StoreImage(store, owners)
        await image.begun()
        saving = start(save_tables(image, tmp_path, server=0, gathering=none_gathered()))
        await stall.is_on()
        saving.cancel()
        await asyncio.wait((saving,), timeout=0.2)
        assert not saving.done()
        stall.over.set()
        with pytest.raises(asyncio.CancelledError):
            await saving
        await image.end()


async def test_a_second_attempt_leaves_only_files_that_it_names_and_those_of_others(
    tmp_path: Path,
) -> None:
    async with tables() as (store, owners, table):
        first = StoreImage(store, owners, marks=Marks("1" * 32))
        await first.begun()
        await first.end()
        gone = route(np.arange(50), 8)
        removed = RowIds(gone.ids, gone.offsets)
        await owners.run(table.remove_jobs(removed, remove_rows, []))
        names = ["another.txt"]
        (tmp_path / "another.txt").write_text("of worker 0")

        async def save(server: int, *, since: str) -> list[str]:
            image = StoreImage(store, owners, marks=Marks("2" * 32, since))
            await image.begun()
            saved = await save_tables(
                image,
                tmp_path,
                server=server,
                gathering=none_gathered(),
                only_changed=bool(since),
            )
            await image.end()
            files: list[SavedFile | RemovedIds] = [*saved.files, *saved.removed]
            return [file.name for file in files]

        assert any("removed" in name for name in await save(1, since="1" * 32))
        names += await save(11, since="")
        names += await save(1, since="")
    assert sorted(await asyncio.to_thread(os.listdir, tmp_path)) == sorted(names)
