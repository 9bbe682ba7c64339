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
from paramfleet_shared.tables.disk.access.transfers import Engine, Transfers
from paramfleet_shared.tables.disk.errors import TierLeaveError, TierReadError
from paramfleet_shared.tables.disk.shards import images
from paramfleet_shared.tables.disk.shards.moving import BESIDE_BYTES, TieredOptions
from paramfleet_shared.tables.disk.shards.shard import TieredShard
from paramfleet_shared.tables.disk.stats import TierOptions, TierStats
from paramfleet_shared.tables.memory.budget import MemoryBudget
from paramfleet_shared.tables.rows.cold import Fetch
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

    def act(self) -> None:
        kinds = ["pull", "push", "push", "unique", "assign", "write", "read", "remove"]
        kind = self.rng.choice(kinds)
        ids = self.ids()
        dim = self.plain.spec.dim
        numbers = self.rng.normal(size=(len(ids), dim)).astype(np.float32)
        if self.plain.spec.optimizer.num_counts:
            numbers[:, :2] = np.abs(np.rint(numbers[:, :2]))
        self.step += 1
        getattr(self, f"_{kind}")(ids, numbers)
        assert self.tiered.num_rows == self.plain.num_rows, kind

    def both_create(self, ids: NDArray[np.int64]) -> None:
        for shard in (self.plain, self.tiered):
            shard.create(ids)

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

    def _write(self, ids: NDArray[np.int64], numbers: NDArray[np.float32]) -> None:
        for shard in (self.plain, self.tiered):
            shard.write(ids, numbers)

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
    parts, start = [], 0
    while start < shard.num_places:
        stop = shard.place_after(start, size)
        parts.append(shard.export(start, stop - start))
        start = stop
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
    start = 0
    while start < twins.tiered.num_places:
        stop = twins.tiered.place_after(start, 100)
        part = by_id(*twins.tiered.valued(start, stop - start, when))
        assert not part.keys() & found.keys()
        found |= part
        start = stop

    assert found == expected


@pytest.mark.parametrize("fit", [False, True], ids=["on disk", "at first in memory"])
@pytest.mark.parametrize("begins", ["in the log", "on pages"])
def test_rows_that_move_between_the_parts_of_a_survey_are_seen_once(
    begins: str, folders: Folders, *, fit: bool
) -> None:
    num = 16 * ROWS_IN_MEMORY
    plain, tiered = pair(TABLES["tracked"], folders, rows=num + 999 if fit else ROWS_IN_MEMORY)
    rng, ids = np.random.default_rng(2), np.arange(num)
    for shard in (plain, tiered):
        shard.push(ids, np.ones((num, 4), np.float32), lr=0.1, step=1, now=1)
    if begins == "on pages" and tiered._mover.tier is not None:
        tiered._mover.tier.merge()

    when, start, num_parts = AsOf(now=9, before=5), 0, 0
    found: list[NDArray[np.int64]] = []
    while start < tiered.num_places:
        stop = tiered.place_after(start, 100)
        found.append(tiered.valued(start, stop - start, when)[0])
        start, num_parts = stop, num_parts + 1
        tiered.pull(rng.choice(ids, 300), np.empty((300, 4), np.float32), create=False)
        new = np.arange(num_parts * 1000, num_parts * 1000 + 1000) + num
        tiered.create(new)  # others leave for them, pages are added, and a tier is opened
        if tiered._mover.tier is not None:
            tiered._mover.tier.merge_step()
        if num_parts % 5 == 0:
            tiered.release(tiered.remove(np.arange(num, num + num_parts * 1000)))

    every = np.concatenate(found)
    once = every[every < num]
    assert num_parts > 5
    assert np.array_equal(np.sort(once), ids)
    assert len(np.unique(every)) == len(every)
    assert tiered.cold.rows > 0


def test_a_part_that_ends_where_it_begins_has_no_rows(folders: Folders) -> None:
    _, tiered = pair(TABLES["tracked"], folders)
    tiered.create(np.arange(5 * ROWS_IN_MEMORY))

    for start in (0, tiered.place_after(0, 100), 7, tiered.num_places, 1 << 62):
        assert tiered.place_after(start, 0) == start
        assert not tiered.valued(start, 0, AsOf())[0].size, start
        assert not tiered.export(start, 0)[0].size, start


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
    for unknown in expected.keys() - found.keys():
        assert not any(expected.pop(unknown)), "a pull made it, with its first value"
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
    assert exported(shard, 4000) == exported(plain)


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


def test_the_log_of_a_shard_that_was_filled_last_is_as_large_as_the_others(
    folders: Folders,
) -> None:
    row_bytes = SparseShard(table(), max_rows=1).layout.row_bytes + ROW_BESIDE_BYTES
    budget, num = MemoryBudget(10_000 * row_bytes), 60_000
    options = TieredOptions(budget, folders)
    shards = [TieredShard(table(), options=options, max_rows=100_000) for _ in range(2)]
    for shard in shards:
        for first in range(0, num, 1000):
            ids = np.arange(first, first + 1000)
            shard.load(ids, np.zeros((1000, 4), np.float32), np.zeros((1000, 4), np.float32))
    merged = [stats_of(shard).batches for shard in shards]
    rng = np.random.default_rng(3)

    for step in range(40):
        ids = np.unique(rng.integers(0, num, 1000))
        for shard in shards:
            shard.push(ids, np.ones((len(ids), 4), np.float32), lr=0.1, step=step)

    first, last = (
        stats_of(shard).batches - before for shard, before in zip(shards, merged, strict=True)
    )
    assert 0 < last <= 1.5 * first, "each merge goes over the pages"


def test_tables_that_are_filled_one_after_another_keep_to_their_budget(
    folders: Folders,
) -> None:
    spec = TABLES["plain"]
    row_bytes = SparseShard(spec, max_rows=1).layout.row_bytes + ROW_BESIDE_BYTES
    options = TieredOptions(MemoryBudget(800 * row_bytes), folders)
    shards = [TieredShard(spec, options=options, max_rows=100_000) for _ in range(4)]
    width, num = shards[0].layout.states.pitch, 3000
    for shard in shards:
        for start in range(0, num, 100):
            values, states = np.ones((100, 4), np.float32), np.ones((100, width), np.float32)
            shard.load(np.arange(start, start + 100), values, states)
            in_memory = sum(each.num_rows - each.cold.rows for each in shards)
            assert in_memory <= 800 + 2 * 100, "one call more than there is room for"
    for shard in shards:
        assert sorted(exported(shard)) == list(range(num))


def test_a_shard_of_another_owner_is_left_alone(folders: Folders) -> None:
    spec = TABLES["plain"]
    row_bytes = SparseShard(spec, max_rows=1).layout.row_bytes + ROW_BESIDE_BYTES
    budget = MemoryBudget(400 * row_bytes)
    mine, other = (
        TieredShard(spec, options=TieredOptions(budget, folders), max_rows=100_000)
        for _ in range(2)
    )
    other.create(np.arange(300))
    mine.create(np.arange(3000))
    assert other.cold.rows == 0

    other.find(np.arange(3))

    assert other.cold.rows > 200


def test_rows_that_are_loaded_take_no_more_memory_than_others(folders: Folders) -> None:
    spec, rows, num = TABLES["plain"], 5_000, 60_000
    made, loaded = pair(spec, folders, rows=rows)[1], pair(spec, folders, rows=rows)[1]
    ids = np.arange(num)
    values = np.random.default_rng(0).normal(size=(num, 4)).astype(np.float32)
    states = np.abs(values)
    for first in range(0, num, 1000):
        some = slice(first, first + 1000)
        made.assign(ids[some], values[some], states[some])

    loaded.load(ids, values, states)  # the rows of a whole file

    assert loaded.num_rows == num
    assert loaded.num_bytes < 2 * made.num_bytes
    for first in range(0, num, 1000):
        some = slice(first, first + 1000)
        for found, expected in zip(loaded.read(ids[some]), (values, states), strict=True):
            np.testing.assert_array_equal(found, expected[some])


def stats_of(shard: TieredShard) -> TierStats:
    stats = shard.tier_stats()
    assert stats is not None
    return stats


def fetch(shard: TieredShard, ids: NDArray[np.int64]) -> Fetch:
    """Fetch rows of ids, slice by slice; return what became of all."""
    taken = brought = left = 0
    while taken < len(ids):
        done = shard.fetch(ids[taken:])
        assert done.taken > 0
        taken, brought, left = taken + done.taken, brought + done.brought, left + done.left
    return Fetch(taken, brought, left)


def test_ids_in_the_order_of_a_fetch_are_read_with_fewer_requests(folders: Folders) -> None:
    requests = []
    for is_ordered in (False, True):
        _, shard = pair(TABLES["plain"], folders, rows=3000)
        ids = np.arange(24_000)
        np.testing.assert_array_equal(shard.fetch_order(ids), ids)  # as long as all rows fit
        shard.create(ids)
        before = stats_of(shard).page_requests
        ordered = shard.fetch_order(ids)
        assert sorted(ordered) == ids.tolist()

        assert fetch(shard, ordered if is_ordered else ids).brought > 0

        requests.append(stats_of(shard).page_requests - before)
    assert requests[1] < requests[0] / 2


def test_fetched_rows_are_read_once(folders: Folders) -> None:
    _, shard = pair(TABLES["plain"], folders)
    ids = np.arange(3 * ROWS_IN_MEMORY)
    assert fetch(shard, ids) == Fetch(len(ids)), "as long as all rows fit"
    shard.create(ids)
    some = np.append(ids[200:210], [10_000, 205])  # one without a row, one that comes twice

    assert fetch(shard, some) == Fetch(12, brought=10)
    assert fetch(shard, some) == Fetch(12, brought=0)

    assert (shard.cold.prefetched, shard.cold.prefetched_used) == (10, 0)
    shard.find(some[:5])
    shard.find(some[:5])
    assert (shard.cold.prefetched, shard.cold.prefetched_used) == (10, 5)


def test_fetched_rows_stay_however_often_others_were_used(folders: Folders) -> None:
    _, shard = pair(TABLES["plain"], folders)
    shard.create(np.arange(4 * ROWS_IN_MEMORY))
    often = np.arange(ROWS_IN_MEMORY // 2)
    for _ in range(10):
        shard.find(often)
    some = np.arange(2 * ROWS_IN_MEMORY, 2 * ROWS_IN_MEMORY + ROWS_IN_MEMORY // 3)

    assert fetch(shard, some).left == 0
    for start in range(100):  # what is under way reads others meanwhile
        shard.find(np.append(often[:20], np.arange(start, start + 3) + 3 * ROWS_IN_MEMORY))

    before = shard.cold.read
    shard.find(some)
    assert shard.cold.read == before
    assert shard.cold.prefetched == shard.cold.prefetched_used == len(some)


def test_rows_that_a_fetch_finds_in_memory_stay_too(folders: Folders) -> None:
    _, shard = pair(TABLES["plain"], folders, rows=1500)
    shard.create(np.arange(6000))
    often = np.arange(4000, 4400)
    shard.find(often)
    here = np.arange(4600, 4900)
    shard.find(here)
    some = np.concatenate([here, np.arange(600)])
    for _ in range(10):
        shard.find(often)

    done = fetch(shard, some)
    assert done.brought > 400
    assert done.left == 0
    before = shard.cold.read
    shard.find(some)

    assert shard.cold.read == before


def test_at_most_half_of_memory_waits_for_its_use(folders: Folders) -> None:
    _, shard = pair(TABLES["plain"], folders)
    shard.create(np.arange(5 * ROWS_IN_MEMORY))
    some = np.arange(3 * ROWS_IN_MEMORY)

    done = fetch(shard, some)

    assert ROWS_IN_MEMORY // 3 < done.brought <= ROWS_IN_MEMORY // 2
    assert done.left >= len(some) - done.brought - ROWS_IN_MEMORY
    assert fetch(shard, some).brought <= 1  # those that leave, as memory is full
    shard.find(some)  # all that waited is used, and more may come
    assert fetch(shard, some).brought > ROWS_IN_MEMORY // 3


def test_rows_that_nobody_comes_for_wait_no_more(folders: Folders) -> None:
    _, shard = pair(TABLES["plain"], folders)
    shard.create(np.arange(20 * ROWS_IN_MEMORY))
    some = np.arange(10 * ROWS_IN_MEMORY, 11 * ROWS_IN_MEMORY)
    most = fetch(shard, some).brought
    assert most > ROWS_IN_MEMORY // 3

    for start in range(5 * ROWS_IN_MEMORY, 9 * ROWS_IN_MEMORY, 10):
        shard.find(np.arange(start, start + 10))

    assert fetch(shard, some + 2 * ROWS_IN_MEMORY).brought >= most - 2
    assert shard.cold.prefetched_used == 0


def test_fetched_rows_that_are_removed_wait_no_more(folders: Folders) -> None:
    _, shard = pair(TABLES["plain"], folders)
    shard.create(np.arange(3 * ROWS_IN_MEMORY))
    some = np.arange(200, 200 + ROWS_IN_MEMORY // 2)
    first = fetch(shard, some).brought

    shard.release(shard.remove(some))
    shard.create(some)  # in their places, and nobody waited for these
    shard.find(some)

    assert shard.cold.prefetched == first
    assert shard.cold.prefetched_used == first  # by the removal, which reads them


@pytest.mark.parametrize("name", TABLES)
def test_what_is_fetched_changes_no_bit(folders: Folders, name: str) -> None:
    twins = Twins(pair(TABLES[name], folders), seed=3)
    for _ in range(ROUNDS):
        ids = twins.rng.integers(0, IDS, 200)
        fetch(twins.tiered, ids)
        twins.act()
    assert twins.tiered.cold.prefetched > 20
    assert exported(twins.tiered) == exported(twins.plain)


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


def twins_on(
    system: ScratchSystem,
    folders: Folders,
    *,
    rows: int = ROWS_IN_MEMORY,
    engine: Engine = "auto",
) -> Twins:
    plain = SparseShard(TABLES["plain"], max_rows=100_000)
    options = TieredOptions(
        MemoryBudget(rows * (plain.layout.row_bytes + ROW_BESIDE_BYTES)),
        folders,
        TierOptions(system=system, engine=engine),
    )
    return Twins((plain, TieredShard(TABLES["plain"], options=options, max_rows=100_000)), 8)


@pytest.mark.parametrize("first", [0, 3])
def test_rows_stay_in_memory_while_the_disk_is_full(
    first: int, folders: Folders, caplog: pytest.LogCaptureFixture
) -> None:
    system = FullSystem()
    twins = twins_on(system, folders)

    for turn in range(9):
        system.is_full = first <= turn < 6
        for _ in range(20):
            twins.act()

    twins.both_create(np.arange(10_000, 11_000))
    assert exported(twins.tiered) == exported(twins.plain)
    assert twins.tiered.cold.full > 0
    (warned,) = (each for each in caplog.records if each.getMessage() == "rows.disk_full")
    assert "No space left" in vars(warned)["reason"]
    assert twins.tiered.num_rows - twins.tiered.cold.rows <= ROWS_IN_MEMORY
    assert len(list(folders().parent.iterdir())) == 1  # tries that failed leave nothing


def test_ids_that_get_no_row_are_looked_for_once(folders: Folders) -> None:
    spec = table(entry=EntrySpec(kind="count_filter", value=3))
    plain, tiered = pair(spec, folders)
    twins = Twins((plain, tiered), 0)
    twins.both_create(np.arange(3000))
    new, values = np.arange(5000, 5200), np.ones((200, 4), np.float32)

    def looked_for() -> int:
        stats = tiered.tier_stats()
        assert stats is not None
        return stats.page_requests + stats.second_reads

    rest = new
    while rest.size:
        rest = rest[tiered.fetch(rest).taken :]
    before = looked_for()
    for _ in range(2):
        twins._pull(new, values)
        twins._push(new, values)
    assert before > 0
    assert looked_for() == before
    assert not tiered.find(np.array([5000])).max() >= 0

    twins._push(new, values)  # this one admits them
    twins.both_create(np.arange(3000, 6000))  # and they leave memory
    assert looked_for() > before
    assert exported(tiered) == exported(plain)
    twins._read(new, values)


def test_a_full_disk_gives_up_as_many_rows_as_are_removed(folders: Folders) -> None:
    system = FullSystem()
    twins = twins_on(system, folders)
    twins.both_create(np.arange(10_000))

    system.is_full = True
    for start in range(0, 8000, 500):
        ids = np.arange(start, start + 500)
        for shard in (twins.plain, twins.tiered):
            shard.release(shard.remove(ids))
        assert twins.tiered.num_rows == twins.plain.num_rows
    assert exported(twins.tiered) == exported(twins.plain)
    twins.both_create(np.arange(3000, 4000))  # new rows, and none of those that were removed
    assert exported(twins.tiered) == exported(twins.plain)

    system.is_full = False
    twins.both_create(np.arange(20_000, 25_000))
    assert twins.tiered.count_doubled() == 0
    assert exported(twins.tiered) == exported(twins.plain)


@pytest.mark.parametrize("engine", ["auto", "threads"])
def test_a_call_that_was_done_says_so_if_rows_cannot_leave(
    engine: Engine, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    twins = twins_on(ScratchSystem(), folders, rows=600, engine=engine)
    rng, errors = np.random.default_rng(1), {"read": 0, "leave": 0}
    chance, run = 0.0, Transfers.run

    def failing(self: Transfers, *extents: Any, write: bool = False) -> None:
        if not write and rng.random() < chance:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        run(self, *extents, write=write)

    monkeypatch.setattr(Transfers, "run", failing)
    grads = np.ones((200, 4), np.float32)
    for step in range(1, 300):
        ids = twins.rng.integers(0, 20_000, 200)
        chance = 0.2 if 100 < step < 200 else 0.0
        try:
            twins.tiered.push(ids, grads, lr=0.1, step=step)
        except TierReadError:  # nothing was changed
            errors["read"] += 1
            continue
        except TierLeaveError:  # it is done
            errors["leave"] += 1
        twins.plain.push(ids, grads, lr=0.1, step=step)

    assert min(errors.values()) > 0
    assert exported(twins.tiered) == exported(twins.plain)
    assert twins.tiered.num_rows == twins.plain.num_rows
    assert twins.tiered.num_rows - twins.tiered.cold.rows <= 600


def test_rows_stay_from_when_they_are_read_until_they_are_changed(folders: Folders) -> None:
    shard = TieredShard(
        table(),
        options=TieredOptions(MemoryBudget(2000 * (32 + ROW_BESIDE_BYTES)), folders),
    )
    rng, out = np.random.default_rng(6), np.empty((100, 4), np.float32)
    shard.create(np.arange(20_000))
    waiting: list[NDArray[np.int64]] = []
    again = 0
    for turn in range(120):
        waiting.append(rng.choice(20_000, 100, replace=False))
        shard.pull(waiting[-1], out, create=True)
        if len(waiting) == 6:  # as many batches are on their way
            before = shard.cold.read
            shard.push(waiting.pop(0), out, lr=0.1, step=turn)
            again += (shard.cold.read - before) * (turn >= 60)

    assert again < 0.05 * 60 * 100


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
