"""What is saved is what there was at one moment between two commands."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tests.unit.pserver.commands.ending import run_to_end
from tests.unit.pserver.commands.histories import (
    EXAMPLES,
    MODES,
    Deed,
    History,
    Replica,
    deeds,
    specs_of,
    store_for,
)

from paramfleet_pserver.checkpoint import images, storage
from paramfleet_pserver.checkpoint.gathering import Gathering
from paramfleet_pserver.checkpoint.images import StoreImage
from paramfleet_pserver.checkpoint.storage import load_tables, save_tables
from paramfleet_pserver.commands.passes import PassMode
from paramfleet_pserver.commands.records import Make
from paramfleet_pserver.core.limits import TableLimits
from paramfleet_pserver.requests.checked import Mode
from paramfleet_pserver.tables.owners import Job, Owners
from paramfleet_pserver.tables.table import DenseTable, SparseTable
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_pserver.waiting.asking import Asking
from paramfleet_shared.checkpoint.manifest import Manifest, SavedTable, write_manifest
from paramfleet_shared.errors import FleetError
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_shared.values.amounts import Memory


def contents_of(store: TableStore) -> dict[str, Any]:
    """Return all rows by id, and all values, with their states."""
    found: dict[str, Any] = {}
    for table in store:
        if isinstance(table, SparseTable):
            blocks = [block.rows.export(0, block.rows.num_slots) for block in table.blocks]
            ids, values, states = (np.concatenate(each) for each in zip(*blocks, strict=True))
            order = np.argsort(ids)
            columns = [ids[order], values[order], states[order]]
        else:
            assert isinstance(table, DenseTable)
            columns = [table.range.values, table.range.states]
        found[table.spec.name] = (
            table.num_updates,
            b"".join(column.tobytes() for column in columns),
        )
    return found


async def execute(one: Replica, maker: History, history: list[Deed]) -> None:
    for deed in history:
        command = maker.command(deed)
        try:
            one.machine.execute(command)
        except FleetError:
            continue


async def loaded_from(directory: Path, image: StoreImage, files: Any) -> dict[str, Any]:
    """Return what a checkpoint that was written of an image holds."""
    tables = tuple(
        SavedTable(spec=table.spec, version=image.versions[table.spec.name])
        for table in image.tables
    )
    write_manifest(directory, Manifest(tables=tables, files=tuple(files)))
    store, owners = store_for(3), Owners(3)
    store.put((await load_tables(store, owners, directory)).tables)
    await owners.close()
    return contents_of(store)


async def save_in_the_middle(
    mode: Mode, storage_of: str, history: list[Deed], cut: int, directory: Path
) -> None:
    one = Replica(mode, 2, rate="full", elastic=False)
    maker = History(mode, one.store)
    if isinstance(one.machine.mode, PassMode):
        maker.book = one.machine.mode.book
    await one.execute([Make(specs_of(mode, storage_of, "momentum"))])
    await execute(one, maker, history[:cut])
    await one.settle()
    expected = contents_of(one.store)
    try:
        image = StoreImage(one.store, one.owners)
        await execute(one, maker, history[cut:])
        gathering = Gathering(Asking(SystemClock()), [], {})
        files, *_ = await save_tables(image, directory, server=0, gathering=gathering)
        await image.end()
        assert await loaded_from(directory, image, files) == expected
    finally:
        await one.owners.close()


@given(
    mode=st.sampled_from(MODES),
    storage_of=st.sampled_from(["float32", "float16", "bfloat16"]),
    history=deeds(),
    cut=st.integers(0, 25),
)
@settings(max_examples=EXAMPLES // 2)
def test_what_is_saved_is_what_there_was_when_the_save_began(
    tmp_path_factory: pytest.TempPathFactory,
    mode: Mode,
    storage_of: str,
    history: list[Deed],
    cut: int,
) -> None:
    directory = tmp_path_factory.mktemp("checkpoint")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images, "SLICE_BYTES", 200)  # so that there are several
        patch.setattr(storage, "CHUNK_ROWS", 7)
        run_to_end(save_in_the_middle(mode, storage_of, history, cut, directory))


async def test_a_range_that_there_is_no_memory_to_copy_is_read_in_its_place() -> None:
    store = TableStore(
        shards=range(8),
        num_shards=8,
        num_owners=2,
        limits=TableLimits(),
        memory=lambda: Memory(total=1 << 30, free=1 << 30),
    )
    owners = Owners(2)
    store.put(store.build(spec) for spec in specs_of("async", "float32", "sgd"))
    assert StoreImage(store, owners).is_apart

    store._memory = lambda: Memory(total=1 << 30, free=0)

    image = StoreImage(store, owners)
    assert not image.is_apart
    (table,) = (table for table in image.tables if not isinstance(table, images.SparseImage))
    part = await table.read(slice(2, 5))
    held = store.find("flat")
    assert isinstance(held, DenseTable)
    np.testing.assert_array_equal(part.values, held.range.values[2:5])
    await owners.close()


async def test_an_image_that_is_ended_before_its_owners_have_taken_it_is_kept_nowhere() -> None:
    store, owners, over = store_for(2), Owners(2), threading.Event()
    store.put(store.build(spec) for spec in specs_of("async", "float32", "sgd"))

    def wait() -> None:
        assert over.wait(LATE_S)

    busy = owners.start([Job(owner, 10**6, wait) for owner in range(len(owners))])
    image = StoreImage(store, owners)
    async with asyncio.TaskGroup() as tasks:
        ending = tasks.create_task(image.end())
        await asyncio.sleep(0)
        assert not ending.done()
        over.set()

    await busy
    sparse = [table for table in store if isinstance(table, SparseTable)]
    assert sparse
    assert not any(block.rows._images for table in sparse for block in table.blocks)
    copies = [each._copy for each in image.tables if isinstance(each, images.DenseImage)]
    assert copies == [None] * len(copies) != []
    await owners.close()
