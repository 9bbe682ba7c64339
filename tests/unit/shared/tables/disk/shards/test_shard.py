"""A shard with rows on disk gives the same bits as one that has all of them in memory."""

import errno
import gc
import os
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from paramfleet_shared.tables.disk.access.system import Buffer, ScratchSystem
from paramfleet_shared.tables.disk.parts import PAGE_PLACES
from paramfleet_shared.tables.disk.shards import images
from paramfleet_shared.tables.disk.shards.moving import BESIDE_BYTES, TieredOptions
from paramfleet_shared.tables.disk.shards.shard import TieredShard
from paramfleet_shared.tables.disk.stats import TierOptions
from paramfleet_shared.tables.memory.budget import MemoryBudget
from paramfleet_shared.tables.rows.evicting import AsOf
from paramfleet_shared.tables.rows.touched import TouchedIds
from paramfleet_shared.tables.sparse import INDEX_BYTES, SparseShard
from paramfleet_shared.tables.spec import EntrySpec, OptimizerSpec, TableSpec

ROWS_IN_MEMORY = 150
IDS = 3000
ROW_BESIDE_BYTES = INDEX_BYTES + BESIDE_BYTES
ROUNDS = 60

Folders = Callable[[], Path]
Rows = dict[int, bytes]


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    numbers = count()
    return lambda: tmp_path / f"tier-{next(numbers)}"


def table(dim: int = 4, **more: Any) -> TableSpec:
    optimizer = more.pop("optimizer", OptimizerSpec(rule="adagrad"))
    return TableSpec(
        name="t", kind="sparse", dim=dim, num_shards=1, optimizer=optimizer, **more
    )


TABLES = {
    "plain": table(),
    "narrow": table(storage="bfloat16", rounding="stochastic"),
    "tracked": table(optimizer=OptimizerSpec(rule="adam", tracks="step")),
    "counted": table(5, optimizer=OptimizerSpec(rule="ctr")),
    "admitted": table(entry=EntrySpec(kind="count_filter", value=2)),
}


def pair(
    spec: TableSpec, folders: Folders, *, rows: int = ROWS_IN_MEMORY
) -> tuple[SparseShard, TieredShard]:
    plain = SparseShard(spec, max_rows=100_000)
    budget = MemoryBudget(rows * (plain.layout.row_bytes + ROW_BESIDE_BYTES))
    options = TieredOptions(budget, folders)
    return plain, TieredShard(spec, options=options, max_rows=100_000)


class Twins:
    """Does the same with both shards, and compares what they answer."""

    def __init__(self, pair: tuple[SparseShard, TieredShard], seed: int) -> None:
        self.plain, self.tiered = pair
        self.rng = np.random.default_rng(seed)
        self.step = 0

    def ids(self, most: int = 120) -> NDArray[np.int64]:
        drawn = self.rng.zipf(1.3, int(self.rng.integers(1, most))) % IDS
        return (drawn * 7919 % IDS).astype(np.int64)

    def act(self, *, removes: bool = True) -> None:
        kinds = ["pull", "push", "push", "unique", "assign", "read", "remove"]
        kind = self.rng.choice(kinds if removes else kinds[:-1])
        ids = self.ids()
        dim = self.plain.spec.dim
        numbers = self.rng.normal(size=(len(ids), dim)).astype(np.float32)
        if self.plain.spec.optimizer.num_counts:
            numbers[:, :2] = np.abs(np.rint(numbers[:, :2]))
        self.step += 1
        getattr(self, f"_{kind}")(ids, numbers)
        assert self.tiered.num_rows == self.plain.num_rows, kind

    def _pull(self, ids: NDArray[np.int64], numbers: NDArray[np.float32]) -> None:
        create = bool(self.rng.integers(2))
        found = [np.empty_like(numbers) for _ in range(2)]
        for shard, out in zip((self.plain, self.tiered), found, strict=True):
            shard.pull(ids, out, create=create)
        np.testing.assert_array_equal(found[1], found[0])

    def _push(self, ids: NDArray[np.int64], numbers: NDArray[np.float32]) -> None:
        for shard in (self.plain, self.tiered):
            shard.push(ids, numbers, lr=0.1, step=self.step, now=self.step)

    def _unique(self, ids: NDArray[np.int64], numbers: NDArray[np.float32]) -> None:
        once, first = np.unique(ids, return_index=True)
        for shard in (self.plain, self.tiered):
            shard.push(once, numbers[first], lr=0.1, step=self.step, unique=True, now=self.step)

    def _assign(self, ids: NDArray[np.int64], numbers: NDArray[np.float32]) -> None:
        width = self.plain.layout.states.pitch
        states = np.abs(self.rng.normal(size=(len(ids), width))).astype(np.float32)
        for shard in (self.plain, self.tiered):
            shard.assign(ids, numbers, states)

    def _remove(self, ids: NDArray[np.int64], numbers: NDArray[np.float32]) -> None:
        gone = [len(self._removed(shard, ids[:20])) for shard in (self.plain, self.tiered)]
        assert gone[0] == gone[1]

    def _removed(self, shard: SparseShard, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        places = shard.remove(ids)
        shard.release(places)
        return places

    def _read(self, ids: NDArray[np.int64], numbers: NDArray[np.float32]) -> None:
        expected, found = self.plain.read(ids), self.tiered.read(ids)
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def by_id(ids: NDArray[np.int64], *columns: NDArray[Any]) -> Rows:
    assert len(np.unique(ids)) == len(ids), "each row once"
    return {
        int(each): b"".join(column[place].tobytes() for column in columns)
        for place, each in enumerate(ids)
    }


def exported(shard: SparseShard, size: int = 1 << 30) -> Rows:
    places = range(0, shard.num_places, size)
    parts = [shard.export(start, size) for start in places]
    return by_id(*(np.concatenate(column) for column in zip(*parts, strict=True)))


@pytest.mark.parametrize("name", TABLES)
def test_it_gives_the_same_bits_as_memory(name: str, folders: Folders) -> None:
    twins = Twins(pair(TABLES[name], folders), seed=len(name))

    for _ in range(4 * ROUNDS):
        twins.act()

    assert exported(twins.tiered) == exported(twins.plain)
    cold = twins.tiered.cold
    assert cold.rows > ROWS_IN_MEMORY
    assert cold.read > 0
    assert cold.dropped > 0
    in_memory = twins.tiered.num_rows - cold.rows
    assert in_memory <= ROWS_IN_MEMORY
    admission, expected = twins.tiered.admission, twins.plain.admission
    if admission is not None and expected is not None:
        assert admission.num_admitted == expected.num_admitted


@pytest.mark.parametrize("name", ["tracked", "counted"])
def test_rows_on_disk_have_the_same_keys_of_eviction(name: str, folders: Folders) -> None:
    twins = Twins(pair(TABLES[name], folders), seed=5)
    for _ in range(ROUNDS):
        twins.act()

    when = AsOf(now=40, before=20)
    expected = by_id(*twins.plain.valued(0, twins.plain.num_places, when))
    found: Rows = {}
    for start in range(0, twins.tiered.num_places, 50_000):
        part = by_id(*twins.tiered.valued(start, 50_000, when))
        assert not part.keys() & found.keys()
        found |= part

    assert found == expected


@pytest.mark.parametrize("least_pages", [1, 1 << 20])
@pytest.mark.parametrize("seed", range(6))
def test_an_image_has_the_rows_of_its_moment(
    seed: int, least_pages: int, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "_LEAST_PAGES", least_pages)
    twins = Twins(pair(TABLES["plain"], folders, rows=100), seed)
    for _ in range(ROUNDS):
        twins.act()
    if twins.tiered._mover.tier is not None and seed % 2:
        twins.tiered._mover.tier.merge()
    expected = exported(twins.plain)

    image = twins.tiered.image()
    parts = []
    for start in range(0, image.num_places, 200):
        for _ in range(int(twins.rng.integers(3))):
            twins.act()
        if twins.tiered._mover.tier is not None and twins.rng.integers(2):
            twins.tiered._mover.tier.merge_step()
        parts.append(twins.tiered.read_image(image, start, 200))
    twins.tiered.end_image(image)

    assert by_id(*(np.concatenate(column) for column in zip(*parts, strict=True))) == expected
    assert exported(twins.tiered) == exported(twins.plain)


def test_a_scan_and_what_was_touched_have_all_rows(folders: Folders) -> None:
    twins = Twins(pair(TABLES["plain"], folders, rows=100), 3)
    for _ in range(ROUNDS):
        twins.act()
    touched = TouchedIds()
    twins.tiered.follow(touched)
    scan = twins.tiered.scan()
    found: dict[int, bytes] = {}

    for start in range(0, scan.num_places, 300):
        twins.act()
        found |= by_id(*scan.read(start, 300))
    scan.end()
    touched.settle()
    ids = touched.take(1 << 20)
    there = ids[twins.tiered.find(ids) >= 0]
    values = np.empty((len(there), twins.tiered.spec.dim), np.float32)
    twins.tiered.pull(there, values, create=False)
    for gone in ids.tolist():
        found.pop(gone, None)
    found |= by_id(there, values)

    expected = {
        each: row[: 4 * twins.plain.spec.dim] for each, row in exported(twins.plain).items()
    }
    assert found == expected


def test_rows_that_fit_open_no_tier(folders: Folders, tmp_path: Path) -> None:
    twins = Twins(pair(TABLES["plain"], folders, rows=2 * IDS), 1)

    for _ in range(ROUNDS):
        twins.act()

    assert twins.tiered.tier_stats() is None
    assert not list(tmp_path.iterdir())


def test_loaded_rows_are_all_there(folders: Folders) -> None:
    plain, shard = pair(TABLES["plain"], folders)
    rng = np.random.default_rng(0)
    ids = rng.permutation(20_000).astype(np.int64)
    values = rng.normal(size=(len(ids), 4)).astype(np.float32)
    states = np.abs(values)
    plain.load(ids, values, states)

    for start in range(0, len(ids), 1000):
        some = slice(start, start + 1000)
        shard.load(ids[some], values[some], states[some])

    assert shard.num_rows == len(ids)
    assert exported(shard, PAGE_PLACES * 64) == exported(plain)


def test_its_folder_goes_with_it(folders: Folders, tmp_path: Path) -> None:
    _, shard = pair(TABLES["plain"], folders)
    shard.create(np.arange(2 * ROWS_IN_MEMORY))
    assert list(tmp_path.iterdir())

    del shard
    gc.collect()

    assert not list(tmp_path.iterdir())


def test_tables_share_a_budget_by_what_they_have(folders: Folders) -> None:
    spec = TABLES["plain"]
    row_bytes = SparseShard(spec, max_rows=1).layout.row_bytes + ROW_BESIDE_BYTES
    options = TieredOptions(MemoryBudget(400 * row_bytes), folders)
    small, large = (TieredShard(spec, options=options, max_rows=100_000) for _ in range(2))

    small.create(np.arange(200))
    assert small.cold.rows == 0
    large.create(np.arange(3000))
    small.create(np.arange(200))

    memory = [shard.num_rows - shard.cold.rows for shard in (small, large)]
    assert sum(memory) <= 400
    assert memory[0] == pytest.approx(400 * 200 / 3200, abs=3)


def test_fetched_rows_are_read_once(folders: Folders) -> None:
    _, shard = pair(TABLES["plain"], folders)
    ids = np.arange(3 * ROWS_IN_MEMORY)
    shard.create(ids)
    some = ids[200:210]

    assert shard.prefetch(some) == 10
    assert shard.prefetch(some) == 0


def test_fetched_rows_stay_however_often_others_were_used(folders: Folders) -> None:
    _, shard = pair(TABLES["plain"], folders)
    shard.create(np.arange(3 * ROWS_IN_MEMORY))
    for _ in range(10):
        shard.find(np.arange(ROWS_IN_MEMORY // 2))
    some = np.arange(2 * ROWS_IN_MEMORY, 2 * ROWS_IN_MEMORY + ROWS_IN_MEMORY // 2)
    shard.prefetch(some)
    before = shard.cold.read

    shard.find(some)

    assert shard.cold.read == before


def test_ids_that_are_loaded_twice_are_counted_wherever_they_are(folders: Folders) -> None:
    _, shard = pair(TABLES["plain"], folders)
    ids = np.random.default_rng(0).permutation(2000).astype(np.int64)
    rows = np.ones((len(ids), 4), np.float32)
    shard.load(ids, rows, rows)
    assert shard.count_doubled() == 0

    found = shard.load(ids[::10], rows[::10], rows[::10])

    assert 0 < len(found) < 200
    assert shard.count_doubled() == 200 - len(found)


class FullSystem(ScratchSystem):
    """A disk that has no room for what is written, while ``is_full``."""

    is_full = False

    def write(self, file: int, parts: Sequence[Buffer], offset: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(file, parts, offset)


@pytest.mark.parametrize("first", [0, 3])
def test_rows_stay_in_memory_while_the_disk_is_full(first: int, folders: Folders) -> None:
    system = FullSystem()
    plain = SparseShard(TABLES["plain"], max_rows=100_000)
    options = TieredOptions(
        MemoryBudget(ROWS_IN_MEMORY * (plain.layout.row_bytes + ROW_BESIDE_BYTES)),
        folders,
        TierOptions(system=system),
    )
    twins = Twins((plain, TieredShard(TABLES["plain"], options=options, max_rows=100_000)), 8)

    for turn in range(9):
        system.is_full = first <= turn < 6
        for _ in range(20):
            twins.act(removes=not system.is_full)

    twins.tiered.create(np.arange(10_000, 11_000))
    twins.plain.create(np.arange(10_000, 11_000))
    assert exported(twins.tiered) == exported(twins.plain)
    assert twins.tiered.cold.full > 0
    assert twins.tiered.num_rows - twins.tiered.cold.rows <= ROWS_IN_MEMORY


def test_shards_of_one_owner_share_buffers(folders: Folders) -> None:
    spec = TABLES["plain"]
    plain = SparseShard(spec, max_rows=1)
    row_bytes = plain.layout.row_bytes + ROW_BESIDE_BYTES
    tier = TierOptions(memory_bytes=1, system=ScratchSystem())
    options = TieredOptions(MemoryBudget(200 * row_bytes), folders, tier)
    every = [
        Twins(
            (
                SparseShard(spec, max_rows=100_000),
                TieredShard(spec, options=options, max_rows=100_000),
            ),
            seed,
        )
        for seed in range(3)
    ]

    for _ in range(2 * ROUNDS):
        for twins in every:
            twins.act()

    for twins in every:
        assert exported(twins.tiered) == exported(twins.plain)
        stats = twins.tiered.tier_stats()
        assert stats is not None
        assert stats.batches > 0
