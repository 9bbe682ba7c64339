"""The log is merged one range of keys after the other, and no key loses its newest row."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.unit.shared.tables.disk.ledger import (
    LAYOUT,
    Rows,
    check,
    content,
    forget,
    note,
    opened,
    some_rows,
)
from typing_extensions import override

from paramfleet_shared.tables.disk.access.system import ScratchSystem
from paramfleet_shared.tables.disk.access.transfers import Transfers
from paramfleet_shared.tables.disk.kernels.pages import pages_of
from paramfleet_shared.tables.disk.log import writeahead
from paramfleet_shared.tables.disk.log.splitting import Split
from paramfleet_shared.tables.disk.pages.header import TierState
from paramfleet_shared.tables.disk.tier import DiskTier, TierOptions

KEYS = 40_000


class Counting(ScratchSystem):
    """Counts the bytes of pages that are written."""

    num_bytes = 0

    @override
    def write_extents(
        self,
        transfers: Transfers,
        file: int,
        extents: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    ) -> None:
        self.num_bytes += int(extents[1].sum())
        super().write_extents(transfers, file, extents)


def test_a_range_has_neighbouring_pages_and_keys_in_their_order() -> None:
    state = replace(TierState.new(LAYOUT, 5), groups=64, pages=128)
    keys = np.random.default_rng(1).integers(0, 1 << 63, 5_000).astype(np.uint64)
    split = Split.of(state, 8)

    order, ends = split.order(keys)

    assert sorted(order.tolist()) == list(range(keys.size))
    homes = np.empty(keys.size, np.int64)
    pages_of(keys, state.form, (state.groups, state.pages), homes)
    first = 0
    for number, end in enumerate(ends):
        mine = order[first:end]
        assert (np.diff(mine.astype(np.int64)) > 0).all(), "as they came"
        assert set((homes[mine] % 64 // 8).tolist()) == {number}
        first = end
    assert first == keys.size


@pytest.mark.parametrize("least", [1, 300], ids=["ranges", "sometimes ranges"])
@pytest.mark.parametrize("num_keys", [3_000, KEYS])
def test_any_calls_leave_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_keys: int, least: int
) -> None:
    monkeypatch.setattr(writeahead, "LEAST_OF_RANGE", least)
    rng, rows, tier = np.random.default_rng(num_keys), Rows(), opened(tmp_path)
    for turn in range(300):
        highest, num = num_keys * (1 + turn // 50), int(rng.integers(1, 400))
        keys = rng.integers(0, highest, num).astype(np.uint64)
        if rng.random() < 0.8:
            values = some_rows(rng, keys.size, LAYOUT)
            tier.put(keys, values)
            note(rows, keys, values)
        else:
            tier.remove(keys)
            forget(rows, keys)
        if rng.random() < 0.05:
            tier.limit_memory(int(rng.choice([1, 60_000])))
        if tier.wants_merge and rng.random() < 0.7:
            tier.merge_step()
        if turn % 30 == 29:
            asked = rng.integers(0, num_keys * 7, 500).astype(np.uint64)
            found, values = tier.read(asked)
            assert found.tolist() == [key in rows for key in asked.tolist()]
            for key, value in zip(asked[found].tolist(), values[found], strict=True):
                assert value.tobytes() == rows[key]
            assert content(tier) == rows
        if turn % 100 == 99:
            tier.close()
            tier = opened(tmp_path)
    check(tier, rows, np.arange(50, dtype=np.uint64))
    tier.merge()
    assert tier.stats().logged_keys == 0
    check(tier, rows, np.arange(50, dtype=np.uint64))
    tier.close()


def test_one_put_may_have_any_number_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writeahead, "LEAST_OF_RANGE", 1)
    rng, rows, tier = np.random.default_rng(2), Rows(), opened(tmp_path)
    for num in (700, 9_000, 900, 20_000):
        keys = rng.integers(0, KEYS, num).astype(np.uint64)
        values = some_rows(rng, num, LAYOUT)
        tier.put(keys, values)
        note(rows, keys, values)
    check(tier, rows, np.arange(50, dtype=np.uint64))
    tier.close()


def written_bytes(folder: Path, memory_bytes: int) -> float:
    """Return how many bytes of pages are written for a row that changes."""
    system, rng = Counting(), np.random.default_rng(4)
    tier = DiskTier(folder, LAYOUT, TierOptions(memory_bytes=memory_bytes, system=system))
    tier.write_back(np.arange(KEYS, dtype=np.uint64), some_rows(rng, KEYS, LAYOUT))
    num = 0
    for turn in range(400):
        if turn == 200:
            system.num_bytes = num = 0
        keys = rng.choice(KEYS, 20, replace=False).astype(np.uint64)
        tier.put(keys, some_rows(rng, keys.size, LAYOUT))
        num += keys.size
        steps = -(-keys.size // tier.keys_per_step)
        while steps and tier.wants_merge:
            tier.merge_step()
            steps -= 1
    tier.close()
    return system.num_bytes / num


def test_pages_are_written_for_more_rows_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = written_bytes(tmp_path / "whole", 1)
    monkeypatch.setattr(writeahead, "LEAST_OF_RANGE", 1)

    by_ranges = written_bytes(tmp_path / "ranges", 1)

    assert by_ranges < 0.6 * whole


def test_segments_go_when_all_ranges_were_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writeahead, "LEAST_OF_RANGE", 1)
    rng, tier, most = np.random.default_rng(5), opened(tmp_path), 0
    for _ in range(400):
        keys = rng.integers(0, KEYS, 100).astype(np.uint64)
        tier.put(keys, some_rows(rng, keys.size, LAYOUT))
        while tier.wants_merge:
            tier.merge_step()
        most = max(most, tier.stats().log_bytes)
    row_bytes = 8 + 4 * LAYOUT.pitch
    assert most < 8 * 1_024 * row_bytes  # each segment has a slot of 8 KiB, too
    assert len(list(tmp_path.glob("log-*"))) < 16
    tier.close()


@pytest.mark.parametrize("least", [1, 1 << 20], ids=["ranges", "at once"])
def test_what_was_logged_and_merged_does_not_come_back_over_a_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    monkeypatch.setattr(writeahead, "LEAST_OF_RANGE", least)
    rng, keys, rows = np.random.default_rng(7), np.arange(50, dtype=np.uint64), Rows()
    for turn in range(3):
        tier = opened(tmp_path)
        tier.put(keys, some_rows(rng, keys.size, LAYOUT))
        while tier.merge_step() or tier.stats().logged_keys:  # range after range
            pass
        if turn == 1:  # in the middle of a range
            tier.put(keys, some_rows(rng, keys.size, LAYOUT))
            tier.merge_step()
        values = some_rows(rng, keys.size, LAYOUT)
        tier.write_back(keys, values)
        note(rows, keys, values)

        def change(some: NDArray[np.uint64], its: NDArray[np.uint32]) -> NDArray[np.bool_]:
            its += 1
            note(rows, some, its)
            return np.ones(some.size, np.bool_)

        if turn:
            tier.sweep(change)
        tier.close()
        tier = opened(tmp_path)
        check(tier, rows, np.arange(600, 650, dtype=np.uint64))
        tier.close()
