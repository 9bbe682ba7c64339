"""How a table's rows are divided into files, and how these are called."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramfleet_pserver.checkpoint import storage
from paramfleet_pserver.checkpoint.gathering import Gathering
from paramfleet_pserver.checkpoint.images import StoreImage, plan_chunks
from paramfleet_pserver.checkpoint.storage import _stem, load_tables, save_tables
from paramfleet_pserver.commands.removing import remove_rows
from paramfleet_pserver.tables.owners import Owners
from paramfleet_pserver.tables.table import SparseTable
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_pserver.waiting.asking import Asking
from paramfleet_shared.checkpoint.manifest import (
    Manifest,
    SavedFile,
    SavedTable,
    write_manifest,
)
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.tables.rows.routing import route
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec
from paramfleet_shared.values.texts import is_name


def test_blocks_share_files_until_they_are_full() -> None:
    assert plan_chunks([3, 0, 5], 4) == [[(0, 0, 3), (2, 0, 1)], [(2, 1, 4)]]


def test_a_table_without_rows_needs_no_file() -> None:
    assert plan_chunks([0, 0], 4) == []


@given(st.lists(st.integers(0, 30), max_size=6), st.integers(1, 12))
def test_every_row_is_in_one_file_and_only_the_last_is_not_full(
    rows: list[int], chunk_rows: int
) -> None:
    chunks = plan_chunks(rows, chunk_rows)

    held = [
        (segment.block, row)
        for chunk in chunks
        for segment in chunk
        for row in range(segment.start, segment.start + segment.num_rows)
    ]
    assert held == [(block, row) for block, num in enumerate(rows) for row in range(num)]
    sizes = [sum(segment.num_rows for segment in chunk) for chunk in chunks]
    assert all(size == chunk_rows for size in sizes[:-1])
    assert all(size > 0 for size in sizes)


NAMES = st.text("aAbB0_-. /:ü", min_size=1, max_size=80).filter(is_name)


@given(names=st.lists(NAMES, min_size=2, unique=True))
def test_every_name_of_a_table_makes_a_harmless_file_name_of_its_own(names: list[str]) -> None:
    stems = [_stem(name) for name in names]

    # Also where case counts for nothing.
    assert len({stem.lower() for stem in stems}) == len(names)
    for stem in stems:
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,80}", stem)
        assert saved_as(f"{stem}.server0.00000.safetensors").table == "t"


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".hidden", "a/b", "a\\b", "a\x00b", "a..b", "a\nb", "-rf", "x" * 201],
)
def test_a_manifest_names_no_file_that_no_save_would_have_made(name: str) -> None:
    with pytest.raises(ValueError, match="leads out of the folder"):
        saved_as(name)


async def test_a_checkpoint_holds_the_rows_that_there_are_and_no_removed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "CHUNK_ROWS", 100)
    spec = TableSpec(
        name="t", kind="sparse", dim=3, num_shards=8, optimizer=OptimizerSpec(rule="adagrad")
    )
    owners, store = Owners(2), TableStore(shards=range(8), num_shards=8, num_owners=2)
    table = store.build(spec)
    assert isinstance(table, SparseTable)
    store.put([table])
    routed = route(np.arange(2000), 8)
    await owners.run(table.create_jobs(RowIds(routed.ids, routed.offsets)))
    for block in table.blocks:
        own = block.rows.ids().copy()
        block.rows.push(own, np.ones((len(own), 3), np.float32), lr=0.1, step=1)
    gone = route(np.concatenate([block.rows.ids()[:700] for block in table.blocks]), 8)
    await owners.run(table.remove_jobs(RowIds(gone.ids, gone.offsets), remove_rows, []))
    fresh = route(np.arange(5000, 5050), 8)
    await owners.run(table.create_jobs(RowIds(fresh.ids, fresh.offsets)))

    gathering = Gathering(Asking(SystemClock()), [], {})
    image = StoreImage(store, owners)
    await image.begun()
    files, *_ = await save_tables(image, tmp_path, server=0, gathering=gathering)
    await image.end()
    tables = (SavedTable(spec=spec, version=1),)
    write_manifest(tmp_path, Manifest(tables=tables, files=tuple(files)))
    other = TableStore(shards=range(8), num_shards=8, num_owners=2)
    (loaded,) = (await load_tables(other, owners, tmp_path)).tables

    assert sum(file.rows for file in files) == table.num_rows == 650
    assert all(file.rows for file in files)
    assert isinstance(loaded, SparseTable)
    assert _rows_of(loaded) == _rows_of(table)
    await owners.close()


def _rows_of(table: SparseTable) -> dict[int, tuple[list[float], list[float]]]:
    exported = [block.rows.export(0, block.rows.num_slots) for block in table.blocks]
    return {
        key: (value, state)
        for columns in exported
        for key, value, state in zip(*(column.tolist() for column in columns), strict=True)
    }


def saved_as(name: str) -> SavedFile:
    return SavedFile.from_wire(
        {"name": name, "sha256": "", "bytes": 0, "rows": 0, "table": "t", "kind": "dense"}
    )
