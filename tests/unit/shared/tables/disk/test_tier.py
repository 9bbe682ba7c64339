"""Cold rows on disk: what was put is read, whatever happened in between."""

import threading
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
    opened,
    some_rows,
)

from paramfleet_shared.tables.disk.access.system import ScratchSystem
from paramfleet_shared.tables.disk.access.transfers import Engine, Transfers
from paramfleet_shared.tables.disk.errors import (
    TierChangedError,
    TierClosedError,
    TierFolderError,
    TierInUseError,
    TierLateError,
)
from paramfleet_shared.tables.disk.pages import rebuilding
from paramfleet_shared.tables.disk.tier import DiskTier, TierOptions
from paramfleet_shared.tables.memory.shapes import RowShapeError
from paramfleet_shared.tables.rows.layout import VALUE, ColumnSpec, RowLayout
from paramfleet_shared.testing.clock import FakeClock

ENGINES: tuple[Engine, ...] = ("auto", "threads")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("layout", [LAYOUT, WIDE], ids=["narrow", "wide"])
def test_random_changes_are_read_as_a_dict_has_them(
    tmp_path: Path, engine: Engine, layout: RowLayout
) -> None:
    rng, rows = np.random.default_rng(1), Rows()
    options = TierOptions(memory_bytes=1, engine=engine)
    tier = DiskTier(tmp_path / "tier", layout, options)
    for turn in range(12):
        keys = rng.integers(0, 9_000, 600).astype(np.uint64)
        values = some_rows(rng, keys.size, layout)
        tier.put(keys, values)
        note(rows, keys, values)
        gone = rng.integers(0, 9_000, 150).astype(np.uint64)
        tier.remove(gone)
        forget(rows, gone)
        if turn % 3 == 0:
            tier.merge_step()
        if turn % 5 == 4:
            tier.close()
            tier = DiskTier(tmp_path / "tier", layout, options)
        check(tier, rows, rng.integers(0, 9_000, 200).astype(np.uint64))

    tier.merge()

    assert tier.stats().merged_rows == len(rows)
    assert tier.stats().logged_keys == 0
    check(tier, rows, np.arange(9_000, 9_100, dtype=np.uint64))
    tier.close()


def test_a_key_that_is_put_twice_has_its_last_row_and_may_be_read_twice(tmp_path: Path) -> None:
    rng, tier = np.random.default_rng(2), opened(tmp_path)
    keys = np.array([5, 6, 5], np.uint64)
    values = some_rows(rng, 3, LAYOUT)

    tier.put(keys, values)

    for _ in range(2):
        found, got = tier.read(np.array([5, 5, 7, 6], np.uint64))
        assert found.tolist() == [True, True, False, True]
        assert (got[[0, 1, 3]] == values[[2, 2, 1]]).all()
        assert not got[2].any()
        tier.merge()
    tier.close()


def test_pages_come_with_rows_and_go_with_them(tmp_path: Path) -> None:
    rng, tier = np.random.default_rng(3), opened(tmp_path)
    keys = rng.permutation(40_000).astype(np.uint64)
    values = some_rows(rng, keys.size, LAYOUT)
    tier.put(keys, values)
    tier.merge()
    grown = tier.stats()

    tier.remove(keys[100:])
    tier.merge()
    shrunk = tier.stats()

    assert 0.6 < keys.size / (145 * grown.pages) < 0.95
    assert grown.overflow_pages < 0.05 * grown.pages
    assert shrunk.pages <= 3
    assert shrunk.overflow_pages == 0
    assert (tmp_path / "pages").stat().st_size < 100_000
    left = dict(zip(keys[:100].tolist(), (row.tobytes() for row in values[:100]), strict=True))
    check(tier, left, keys[100:200])
    tier.close()


def test_rows_that_are_there_are_merged_where_they_are(tmp_path: Path) -> None:
    rng, tier = np.random.default_rng(8), opened(tmp_path, WIDE)
    keys = rng.permutation(4_000).astype(np.uint64)
    tier.put(keys, some_rows(rng, keys.size, WIDE))
    tier.merge()
    places = np.concatenate([keys for keys, _ in tier.iterate()])
    before = tier.stats()
    assert before.overflow_pages > 0

    values = some_rows(rng, keys.size, WIDE)
    tier.put(keys, values)
    tier.merge()

    assert np.concatenate([keys for keys, _ in tier.iterate()]).tolist() == places.tolist()
    rows: Rows = {}
    note(rows, keys, values)
    check(tier, rows, np.arange(4_000, 4_100, dtype=np.uint64))
    gone = keys[:1_000]
    tier.remove(gone)
    forget(rows, gone)
    new = np.arange(30_000, 30_600, dtype=np.uint64)
    values = some_rows(rng, new.size, WIDE)
    tier.put(new, values)
    note(rows, new, values)
    tier.merge()
    assert tier.stats().merged_rows == len(rows)
    check(tier, rows, gone)
    tier.close()


def test_merges_are_spread_over_what_comes_meanwhile_and_done_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuilding, "BATCH_BYTES", 2 * 4096)
    rng = np.random.default_rng(9)
    tier = DiskTier(tmp_path, LAYOUT, TierOptions(memory_bytes=1, system=ScratchSystem()))
    values = some_rows(rng, 20_000, LAYOUT)
    tier.write_back(np.arange(20_000, dtype=np.uint64), values)
    num_calls, num_merging = 600, 0
    for _ in range(num_calls):
        some = rng.choice(20_000, 20, replace=False)
        before = tier.stats().batches
        tier.put(some.astype(np.uint64), values[some])
        assert tier.stats().batches == before, "no put had to merge"
        steps = -(-some.size // tier.keys_per_step)
        num_merging += tier.wants_merge
        while steps and tier.wants_merge:
            tier.merge_step()
            steps -= 1

    assert 0.26 < num_merging / num_calls < 0.6
    tier.close()


def test_keys_of_any_shape_spread_over_the_pages(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    ramp = np.arange(4_000, dtype=np.uint64)
    slotted = (ramp << np.uint64(54)) | ramp
    keys = np.unique(np.concatenate([ramp << np.uint64(40), ramp << np.uint64(12), slotted]))

    tier.write_back(keys, np.zeros((keys.size, LAYOUT.pitch), np.uint32))

    stats = tier.stats()
    assert stats.merged_rows == keys.size
    assert stats.overflow_pages < 0.05 * stats.pages
    assert tier.read(keys)[0].all()
    tier.close()


def test_rows_are_read_while_a_merge_is_under_way(tmp_path: Path) -> None:
    rng, tier, rows = np.random.default_rng(4), opened(tmp_path, WIDE), Rows()
    keys = np.arange(20_000, dtype=np.uint64)
    values = some_rows(rng, keys.size, WIDE)
    tier.put(keys, values)
    note(rows, keys, values)
    steps = 0
    while tier.merge_step() or steps < 40:
        steps += 1
        some = rng.integers(0, 20_000, 50).astype(np.uint64)
        values = some_rows(rng, some.size, WIDE)
        tier.put(some, values)
        note(rows, some, values)
        tier.remove(some[:5])
        forget(rows, some[:5])
        if steps % 4 == 0:
            probe = rng.integers(0, 21_000, 300).astype(np.uint64)
            found, got = tier.read(probe)
            assert found.tolist() == [key in rows for key in probe.tolist()]
            for key, row in zip(probe[found].tolist(), got[found], strict=True):
                assert row.tobytes() == rows[key]

    check(tier, rows, keys[:10])
    tier.close()
    tier = opened(tmp_path, WIDE)
    check(tier, rows, keys[:10])
    tier.close()


def test_a_sweep_changes_rows_where_they_are(tmp_path: Path) -> None:
    rng, tier = np.random.default_rng(5), opened(tmp_path)
    keys = np.arange(5_000, dtype=np.uint64)
    values = some_rows(rng, keys.size, LAYOUT)
    tier.put(keys, values)

    def halve_even(keys: NDArray[np.uint64], rows: NDArray[np.uint32]) -> NDArray[np.bool_]:
        even: NDArray[np.bool_] = keys % 2 == 0
        rows[even] >>= 1
        return even

    assert tier.sweep(halve_even) == 2_500

    values[::2] >>= 1
    _, got = tier.read(keys)
    assert (got == values).all()
    assert tier.sweep(lambda keys, _rows: np.zeros(len(keys), bool)) == 0
    tier.close()


def test_rows_written_back_are_newer_than_those_in_the_log(tmp_path: Path) -> None:
    rng, tier = np.random.default_rng(6), opened(tmp_path)
    keys = np.arange(500, dtype=np.uint64)
    tier.put(keys, some_rows(rng, keys.size, LAYOUT))
    values = some_rows(rng, 300, LAYOUT)

    tier.write_back(keys[:300], values)

    tier.close()
    tier = opened(tmp_path)
    found, got = tier.read(keys[:300])
    assert found.all()
    assert (got == values).all()
    assert len(content(tier)) == 500
    tier.close()


def test_changes_end_a_pass_over_all_rows(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    tier.put(np.arange(10, dtype=np.uint64), np.zeros((10, LAYOUT.pitch), np.uint32))
    passing = tier.iterate()
    next(passing)

    tier.remove(np.arange(1, dtype=np.uint64))

    with pytest.raises(TierChangedError, match="were changed while they were read"):
        next(passing)
    tier.close()


def test_a_folder_has_one_owner_and_rows_of_one_layout(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    with pytest.raises(TierInUseError, match="in use by another process"):
        opened(tmp_path)
    tier.close()
    tier.close()

    with pytest.raises(TierFolderError, match=r"its rows have the columns .*value"):
        opened(tmp_path, WIDE)
    with pytest.raises(TierClosedError, match="are closed"):
        tier.read(np.zeros(1, np.uint64))
    huge = RowLayout((ColumnSpec(VALUE, 5_000),))
    with pytest.raises(TierFolderError, match=r"a row has 20,000 bytes"):
        opened(tmp_path / "huge", huge)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(TierFolderError, match="File exists"):
        opened(tmp_path / "file")


def test_arrays_of_another_shape_or_type_are_refused(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    keys = np.zeros(2, np.uint64)
    with pytest.raises(RowShapeError, match="expected uint64"):
        tier.read(keys.view(np.int64))
    with pytest.raises(RowShapeError, match="got uint32"):
        tier.put(keys, np.zeros((2, LAYOUT.pitch + 1), np.uint32))
    with pytest.raises(RowShapeError, match="got uint32"):
        tier.write_back(keys, np.zeros((1, LAYOUT.pitch), np.uint32))
    tier.put(keys[:0], np.zeros((0, LAYOUT.pitch), np.uint32))
    tier.remove(keys[:0])
    assert tier.read(keys[:0])[0].size == 0
    tier.close()


class SlowClock(FakeClock):
    """Each look at it takes a second."""

    def monotonic(self) -> float:
        """Return the time."""
        self.jump(1.0)
        return super().monotonic()


def test_a_read_that_takes_too_long_gives_up(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, LAYOUT, TierOptions(clock=SlowClock()))
    keys = np.arange(10, dtype=np.uint64)

    with pytest.raises(TierLateError, match=r"10 keys weren't read within 0.5 s"):
        tier.read(keys, limit_s=0.5)

    assert not tier.read(keys, limit_s=60.0)[0].any()
    tier.close()


def test_another_thread_may_go_on_with_a_tier(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    keys = np.arange(2_000, dtype=np.uint64)
    tier.put(keys, np.ones((keys.size, LAYOUT.pitch), np.uint32))
    tier.merge()
    found = []

    def read() -> None:
        found.append(tier.read(keys)[0].all())

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()

    assert found == [True]
    assert tier.read(keys)[0].all()
    assert tier.stats().engine in {"ring", "threads"}
    tier.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_file_that_ends_too_soon_is_an_error(tmp_path: Path, engine: Engine) -> None:
    transfers = Transfers(engine)
    numbers = np.arange(40)
    room = np.zeros(40 * 512, np.uint64)
    with (tmp_path / "file").open("wb+") as file:
        file.write(bytes(39 * 4096))
        file.flush()
        with pytest.raises(OSError, match="the file ends at byte 159,744"):
            transfers.run(
                file.fileno(),
                numbers * 4096,
                np.full(40, 4096),
                room.ctypes.data + numbers * 4096,
            )
    with pytest.raises(OSError, match="Bad file descriptor"):
        transfers.run(
            10_000, numbers[:2] * 4096, np.full(2, 4096), room.ctypes.data + numbers[:2]
        )
    transfers.close()


def test_pages_laid_out_anew_break_a_hold(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, LAYOUT, TierOptions(system=ScratchSystem()))
    keys = np.arange(1_000, dtype=np.uint64)
    tier.write_back(keys, np.ones((keys.size, LAYOUT.row_bytes // 4), np.uint32))
    pages = tier.parts.num_pages
    hold = tier.parts.hold()
    tier.remove(keys)
    tier.merge()

    some = np.arange(2_000, dtype=np.uint64)
    tier.write_back(some, np.ones((some.size, LAYOUT.row_bytes // 4), np.uint32))
    assert (tier.parts.num_pages, hold.is_broken) == (pages, False)

    tier.remove(some)
    tier.merge()
    many = np.arange(20_000, dtype=np.uint64)
    tier.write_back(many, np.ones((many.size, LAYOUT.row_bytes // 4), np.uint32))
    assert tier.parts.num_pages > pages
    assert hold.is_broken
    assert tier.read(many)[0].all()
    tier.close()
