"""Checkpoints of tables with rows on disk, into memory and to disk again."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.unit.pserver.cold import ColdShards

from paramfleet_pserver.checkpoint import images, storage
from paramfleet_pserver.checkpoint.gathering import Gathering
from paramfleet_pserver.checkpoint.images import StoreImage
from paramfleet_pserver.checkpoint.storage import load_tables, save_tables
from paramfleet_pserver.tables.blocks import NewShard, in_memory
from paramfleet_pserver.tables.owners import Owners
from paramfleet_pserver.tables.table import SparseTable
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_pserver.waiting.asking import Asking
from paramfleet_shared.checkpoint.manifest import Manifest, SavedTable, write_manifest
from paramfleet_shared.errors import FleetError
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.tables.rows.routing import route
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec

ROWS = 3000
SPEC = TableSpec(
    name="t", kind="sparse", dim=3, num_shards=8, optimizer=OptimizerSpec(rule="adagrad")
)


@pytest.fixture
def cold() -> Iterator[NewShard]:
    with ColdShards(200 * 64) as made:
        yield made


def store_of(new_shard: NewShard) -> TableStore:
    return TableStore(shards=range(8), num_shards=8, num_owners=2, new_shard=new_shard)


def rows_of(table: SparseTable) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for block in table.blocks:
        ids, values, states = block.rows.export(0, block.rows.num_places)
        for place, key in enumerate(ids.tolist()):
            assert key not in found
            found[key] = values[place].tobytes() + states[place].tobytes()
    return found


async def train(table: SparseTable, owners: Owners, seed: int) -> None:
    rng = np.random.default_rng(seed)
    routed = route(np.unique(rng.integers(0, ROWS, 500)), 8)
    rows = RowIds(routed.ids, routed.offsets)
    await owners.run(table.create_jobs(rows))
    for block in table.blocks:
        own = np.ascontiguousarray(rows.ids[rows.within(block.shards)])
        grads = rng.normal(size=(len(own), 3)).astype(np.float32)
        block.rows.push(own, grads, lr=0.1, step=1 + seed)


@pytest.mark.parametrize("to_disk", [False, True])
async def test_a_save_has_the_rows_of_its_moment_and_is_loaded(
    tmp_path: Path, cold: NewShard, monkeypatch: pytest.MonkeyPatch, *, to_disk: bool
) -> None:
    monkeypatch.setattr(storage, "CHUNK_ROWS", 300)
    monkeypatch.setattr(images, "SLICE_BYTES", 4000)
    owners, store = Owners(2), store_of(cold)
    table = store.build(SPEC)
    assert isinstance(table, SparseTable)
    store.put([table])
    for seed in range(12):
        await train(table, owners, seed)
    expected = rows_of(table)

    image = StoreImage(store, owners)
    await image.begun()
    for seed in range(12, 16):
        await train(table, owners, seed)
    gathering = Gathering(Asking(SystemClock()), [], {})
    files, *_ = await save_tables(image, tmp_path, server=0, gathering=gathering)
    await image.end()
    tables = (SavedTable(spec=SPEC, version=1),)
    write_manifest(tmp_path, Manifest(tables=tables, files=tuple(files)))
    other = store_of(cold if to_disk else in_memory)
    (loaded,) = (await load_tables(other, owners, tmp_path)).tables

    assert isinstance(loaded, SparseTable)
    assert all(file.rows for file in files)
    assert sum(file.rows for file in files) == len(expected)
    assert loaded.num_rows == len(expected)
    assert rows_of(loaded) == expected
    assert (loaded.tier == "memory+disk") == to_disk
    await owners.close()


async def test_a_row_that_two_files_have_is_refused_wherever_the_first_one_is(
    tmp_path: Path, cold: NewShard
) -> None:
    owners, store = Owners(2), store_of(in_memory)
    table = store.build(SPEC)
    assert isinstance(table, SparseTable)
    store.put([table])
    for seed in range(12):
        await train(table, owners, seed)
    files = []
    gathering = Gathering(Asking(SystemClock()), [], {})
    for server in range(2):
        image = StoreImage(store, owners)
        await image.begun()
        found, *_ = await save_tables(image, tmp_path, server=server, gathering=gathering)
        await image.end()
        files += found
        gone = route(np.arange(ROWS)[10:], 8)
        await owners.run(
            table.remove_jobs(
                RowIds(gone.ids, gone.offsets),
                lambda block, ids: len(block.rows.remove(ids)),
                [],
            )
        )
    tables = (SavedTable(spec=SPEC, version=1),)
    write_manifest(tmp_path, Manifest(tables=tables, files=tuple(files)))

    with pytest.raises(FleetError, match=r"twice|in another file, too"):
        await load_tables(store_of(cold), owners, tmp_path)
    await owners.close()
