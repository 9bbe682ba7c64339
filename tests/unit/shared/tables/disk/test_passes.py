"""Passes over all rows, whose chunks are read ahead and written behind."""

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.unit.shared.tables.disk.ledger import (
    LAYOUT,
    WIDE,
    Rows,
    check,
    content,
    forget,
    note,
    some_rows,
)
from tests.unit.shared.tables.disk.test_faults import (
    Crash,
    CrashingSystem,
    RefusingSystem,
    changed,
)

from paramfleet_shared.tables.disk import tier as tiers
from paramfleet_shared.tables.disk.access.system import ScratchSystem, System
from paramfleet_shared.tables.disk.access.transfers import Engine, Transfers
from paramfleet_shared.tables.disk.errors import (
    TierClosedError,
    TierDamagedError,
    TierFailedError,
    TierFullError,
)
from paramfleet_shared.tables.disk.pages import rebuilding
from paramfleet_shared.tables.disk.pages.files import PAGES_OFFSET
from paramfleet_shared.tables.disk.tier import DiskTier, TierOptions
from paramfleet_shared.tables.rows.layout import RowLayout

NUM = 2_000


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a chunk be a few pages."""
    monkeypatch.setattr(tiers, "CHUNK_BYTES", 3 * 4096)
    monkeypatch.setattr(rebuilding, "BATCH_BYTES", 3 * 4096)


def filled(
    folder: Path, system: System, layout: RowLayout = LAYOUT, engine: Engine = "auto"
) -> tuple[DiskTier, Rows]:
    """Return a tier with rows on many pages."""
    rng, rows = np.random.default_rng(3), Rows()
    tier = DiskTier(folder, layout, TierOptions(engine=engine, system=system))
    keys = np.arange(NUM, dtype=np.uint64)
    values = some_rows(rng, NUM, layout)
    tier.put(keys, values)
    note(rows, keys, values)
    tier.merge()
    return tier, rows


def flipped(keys: NDArray[np.uint64], rows: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Change each row of a sweep but those of some keys."""
    some: NDArray[np.bool_] = keys % 3 != 0
    rows[some] = ~rows[some]
    return some


def flip(rows: Rows) -> Rows:
    """Return what a sweep of ``flipped`` leaves."""
    return {
        key: (~np.frombuffer(row, np.uint32)).tobytes() if key % 3 else row
        for key, row in rows.items()
    }


@pytest.mark.parametrize("engine", ["auto", "threads"])
@pytest.mark.parametrize("layout", [LAYOUT, WIDE], ids=["narrow", "wide"])
def test_all_rows_are_passed_once_and_changed_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine, layout: RowLayout
) -> None:
    if layout is WIDE:  # of pages of 32 KiB
        monkeypatch.setattr(tiers, "CHUNK_BYTES", 3 << 15)
        monkeypatch.setattr(rebuilding, "BATCH_BYTES", 3 << 15)
    tier, rows = filled(tmp_path, System(), layout, engine)
    gone = np.arange(100, dtype=np.uint64)
    assert tier.stats().pages > 12

    assert tier.sweep(flipped) == sum(key % 3 != 0 for key in rows)
    rows = flip(rows)
    check(tier, rows, gone)
    tier.remove(gone)
    forget(rows, gone)
    assert content(tier) == rows
    assert tier.sweep(lambda keys, _rows: np.zeros(len(keys), bool)) == 0
    tier.close()
    tier = DiskTier(tmp_path, layout)
    check(tier, rows, gone)
    tier.close()


@pytest.mark.parametrize("system", [System, ScratchSystem], ids=["journal", "scratch"])
def test_rows_on_overflow_pages_are_changed_where_they_are(
    tmp_path: Path, system: type[System]
) -> None:
    tier, rows = with_overflow(tmp_path, system())
    before, places = tier.stats(), [keys.tolist() for keys, _ in tier.iterate()]

    assert tier.sweep(flipped) == sum(key % 3 != 0 for key in rows)

    rows, after = flip(rows), tier.stats()
    assert [keys.tolist() for keys, _ in tier.iterate()] == places
    assert (after.pages, after.overflow_pages) == (before.pages, before.overflow_pages)
    check(tier, rows, np.arange(9_000, 9_010, dtype=np.uint64))
    keys = np.arange(4_000, 8_000, dtype=np.uint64)
    tier.remove(keys[:1_000])
    forget(rows, keys[:1_000])
    values = some_rows(np.random.default_rng(7), 3_000, LAYOUT)
    tier.put(keys[1_000:], values)
    note(rows, keys[1_000:], values)
    tier.merge()
    assert tier.sweep(flipped) == sum(key % 3 != 0 for key in rows)
    check(tier, flip(rows), keys)
    tier.close()


def test_a_sweep_that_was_cut_off_is_finished_from_the_journal(tmp_path: Path) -> None:
    system = RefusingSystem({"write_extents"}, errno.EIO)
    tier, rows = with_overflow(tmp_path, system)
    system.is_refusing = True
    with pytest.raises(TierFailedError):
        tier.sweep(flipped)
    tier.close()

    tier = DiskTier(tmp_path, LAYOUT)

    found, new = content(tier), flip(rows)
    _is_old_or_new(found, rows)
    assert any(found[key] == new[key] != rows[key] for key in rows)
    tier.close()


def with_overflow(folder: Path, system: System) -> tuple[DiskTier, Rows]:
    """Return a tier whose pages have several overflow pages each."""
    tier, rows = filled(folder, system)
    tier.parts.hold()
    keys = np.arange(NUM, 3 * NUM, dtype=np.uint64)
    values = some_rows(np.random.default_rng(6), keys.size, LAYOUT)
    tier.put(keys, values)
    note(rows, keys, values)
    tier.merge()
    stats = tier.stats()
    assert stats.overflow_pages > stats.pages, "some pages have two"
    return tier, rows


def test_a_pass_may_be_left_and_rows_read_during_one(tmp_path: Path) -> None:
    tier, rows = filled(tmp_path, System())
    passing = tier.iterate()
    keys, values = next(passing)
    found, read = tier.read(keys)
    assert found.all()
    assert (read == values).all()
    del passing

    other = tier.iterate()
    next(other)
    assert content(tier) == rows
    tier.sweep(flipped)
    del other
    check(tier, flip(rows), keys[:5])
    tier.close()


def test_a_tier_may_be_closed_during_a_pass(tmp_path: Path) -> None:
    tier, _ = filled(tmp_path, System())
    passing = tier.iterate()
    next(passing)

    tier.close()

    with pytest.raises(TierClosedError):
        next(passing)


def test_another_thread_may_go_on_with_a_pass(tmp_path: Path) -> None:
    tier, rows = filled(tmp_path, System())
    passing = tier.iterate()
    found: Rows = {}

    def some(pieces: Iterator[tuple[NDArray[np.uint64], NDArray[np.uint32]]]) -> None:
        for _ in range(3):
            note(found, *next(pieces))

    some(passing)
    thread = threading.Thread(target=some, args=(passing,))
    thread.start()
    thread.join()
    for keys, values in passing:
        note(found, keys, values)

    assert found == rows
    tier.close()


def test_a_damaged_page_ends_a_pass_where_it_is(tmp_path: Path) -> None:
    tier, rows = filled(tmp_path, System())
    tier.close()
    changed(tmp_path / "pages", PAGES_OFFSET + 7 * 4096 + 3_000)
    (tmp_path / "journal").unlink()
    tier = DiskTier(tmp_path, LAYOUT)
    seen: list[NDArray[np.uint64]] = []

    with pytest.raises(TierDamagedError, match="page 7"):
        seen.extend(keys for keys, _ in tier.iterate())
    with pytest.raises(TierDamagedError, match="page 7"):
        tier.sweep(flipped)

    assert 0 < sum(keys.size for keys in seen) < len(rows)
    tier.close()


def test_an_error_of_the_change_leaves_whole_pages(tmp_path: Path) -> None:
    tier, rows = filled(tmp_path, System())
    calls = []

    def fail(keys: NDArray[np.uint64], values: NDArray[np.uint32]) -> NDArray[np.bool_]:
        calls.append(keys)
        if len(calls) == 3:
            raise Crash
        return flipped(keys, values)

    with pytest.raises(Crash):
        tier.sweep(fail)

    new = flip(rows)
    for keys in calls[:2]:
        rows |= {key: new[key] for key in keys.tolist()}
    check(tier, rows, calls[2])
    tier.close()


def test_a_full_disk_ends_a_sweep_and_the_next_one_does_it(tmp_path: Path) -> None:
    system = RefusingSystem({"claim"}, errno.ENOSPC)
    tier, rows = filled(tmp_path, system)
    system.is_refusing = True

    with pytest.raises(TierFullError):
        tier.sweep(flipped)

    check(tier, rows, np.arange(5, dtype=np.uint64))
    system.is_refusing = False
    tier.sweep(flipped)
    check(tier, flip(rows), np.arange(5, dtype=np.uint64))
    tier.close()


@pytest.mark.parametrize("call", ["write", "sync", "write_extents"])
def test_after_a_failed_write_a_sweep_ends_and_no_row_is_lost(
    tmp_path: Path, call: str
) -> None:
    system = RefusingSystem({call}, errno.EIO)
    tier, rows = filled(tmp_path, system)
    system.is_refusing = True

    with pytest.raises(TierFailedError):
        tier.sweep(flipped)
    with pytest.raises(TierFailedError):
        tier.stats()
    tier.close()

    tier = DiskTier(tmp_path, LAYOUT)
    _is_old_or_new(content(tier), rows)
    tier.close()


def _is_old_or_new(found: Rows, rows: Rows) -> None:
    """Pass if each row is there, as it was before a sweep or as it is after it."""
    new = flip(rows)
    assert found.keys() == rows.keys()
    assert all(row in {rows[key], new[key]} for key, row in found.items())


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
def test_a_crash_at_any_write_of_a_sweep_loses_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, power: bool
) -> None:
    monkeypatch.setattr(rebuilding, "BATCH_BYTES", 6 * 4096)
    has_crashed, number = True, 0
    while has_crashed:
        number += 1
        folder, system = tmp_path / str(number), CrashingSystem(1_000 + number, power=power)
        tier, rows = filled(folder, system)
        system.calls = 1_000
        has_crashed = False
        try:
            tier.sweep(flipped)
        except Crash:
            has_crashed = True
        tier.close()

        tier = DiskTier(folder, LAYOUT)
        _is_old_or_new(content(tier), rows)
        tier.sweep(lambda keys, _rows: np.ones(len(keys), bool))
        assert len(content(tier)) == len(rows)
        tier.close()
    assert number > 12


@pytest.mark.parametrize("engine", ["auto", "threads"])
def test_what_was_begun_is_waited_for(tmp_path: Path, engine: Engine) -> None:
    path = tmp_path / "file"
    path.write_bytes(np.arange(200 * 512, dtype=np.uint64).tobytes())
    numbers = np.arange(200)
    with path.open("rb") as file:
        for num in (10, 200):  # more than are asked for at once through a ring
            room = np.zeros(num * 512, np.uint64)
            transfers = Transfers(engine, may_begin=True)
            at = (numbers[:num] * 4096, np.full(num, 4096))
            transfers.begin(file.fileno(), *at, room.ctypes.data + at[0])
            transfers.finish()
            transfers.finish()
            assert (room == np.arange(room.size)).all()
            transfers.begin(file.fileno(), at[0] + 4096, at[1], room.ctypes.data + at[0])
            if num == 200:
                with pytest.raises(OSError, match="the file ends at byte 819,200"):
                    transfers.finish()
            transfers.close()
            assert (room[:512] == np.arange(512, 1024)).all()
