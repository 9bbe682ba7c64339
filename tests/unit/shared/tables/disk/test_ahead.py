"""Pages that are read ahead give the same rows, whatever is written meanwhile."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.unit.shared.tables.disk.ledger import LAYOUT, Rows, check, note, some_rows

from paramfleet_shared.tables.disk.access.buffers import Buffers
from paramfleet_shared.tables.disk.access.system import ScratchSystem
from paramfleet_shared.tables.disk.errors import TierReadError
from paramfleet_shared.tables.disk.tier import DiskTier, TierOptions
from paramfleet_shared.testing.patience import LATE_S

if TYPE_CHECKING:
    from paramfleet_shared.tables.disk.access.transfers import Engine

NUM = 60_000
"""Of rows on some 500 pages: more than a ring takes at once."""


@pytest.fixture(params=["auto", "threads"])
def filled(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[DiskTier, Rows]]:
    """Return a tier whose rows are all on pages."""
    engine: Engine = request.param
    tier, rows = made(tmp_path / "tier", TierOptions(engine=engine, system=ScratchSystem()))
    yield tier, rows
    tier.close()


def made(folder: Path, options: TierOptions) -> tuple[DiskTier, Rows]:
    tier, rows, keys = (
        DiskTier(folder, LAYOUT, options),
        Rows(),
        np.arange(NUM, dtype=np.uint64),
    )
    values = some_rows(np.random.default_rng(1), NUM, LAYOUT)
    tier.write_back(keys, values)
    note(rows, keys, values)
    return tier, rows


def compare(tier: DiskTier, rows: Rows, keys: NDArray[np.uint64]) -> None:
    found, values = tier.read(keys)
    assert found.tolist() == [key in rows for key in keys.tolist()]
    for key, value in zip(keys[found].tolist(), values[found], strict=True):
        assert value.tobytes() == rows[key]


def some_keys(seed: int, num: int = 300) -> NDArray[np.uint64]:
    return np.random.default_rng(seed).choice(NUM + 100, num, replace=False).astype(np.uint64)


def test_what_was_read_ahead_is_not_read_again(filled: tuple[DiskTier, Rows]) -> None:
    tier, rows = filled
    keys = some_keys(1)
    before = tier.stats().page_requests
    tier.read_ahead(keys)
    begun = tier.stats().page_requests
    assert begun > before

    compare(tier, rows, keys)

    after = tier.stats()
    assert after.page_requests <= begun + after.second_reads  # of overflow pages
    compare(tier, rows, some_keys(2))
    assert tier.stats().page_requests > after.page_requests


def test_pages_that_were_written_meanwhile_are_read_again(
    filled: tuple[DiskTier, Rows],
) -> None:
    tier, rows = filled
    rng = np.random.default_rng(3)
    for seed in range(12):
        keys = some_keys(seed)
        tier.read_ahead(keys)
        changed = np.unique(rng.choice(keys, 100))
        values = some_rows(rng, changed.size, LAYOUT)
        tier.put(changed, values)
        note(rows, changed, values)
        if seed % 3:
            tier.merge()  # to the same pages, while these are read
        if seed % 4 == 3:  # there are more pages then, and keys are on others
            more = np.arange(100_000 * seed, 100_000 * seed + 20_000, dtype=np.uint64)
            values = some_rows(rng, more.size, LAYOUT)
            tier.write_back(more, values)
            note(rows, more, values)
        compare(tier, rows, keys)
    check(tier, rows, some_keys(1))


def test_tiers_that_share_memory_read_ahead_in_turn(tmp_path: Path) -> None:
    buffers = Buffers()
    options = TierOptions(system=ScratchSystem(), buffers=buffers)
    tiers = [made(tmp_path / str(number), options) for number in range(3)]
    for seed in range(4):
        for tier, _ in tiers:
            tier.read_ahead(some_keys(seed))
        for tier, rows in tiers:
            compare(tier, rows, some_keys(seed))
    tiers[1][0].read_ahead(some_keys(9))
    tiers[1][0].close()  # while it reads
    for tier, rows in (tiers[0], tiers[2]):
        tier.read_ahead(some_keys(10))
        compare(tier, rows, some_keys(10))
        tier.close()


def test_a_file_that_ends_is_reported_by_who_needs_the_rows(
    filled: tuple[DiskTier, Rows], tmp_path: Path
) -> None:
    tier, _ = filled
    path = tmp_path / "tier" / "pages"
    os.truncate(path, path.stat().st_size // 2)

    tier.read_ahead(some_keys(1))

    with pytest.raises(TierReadError, match="the file ends at byte"):
        tier.read(some_keys(1))


def test_no_thread_can_be_started_and_rows_are_read_when_they_are_needed(
    filled: tuple[DiskTier, Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    tier, rows = filled

    def refuse(_: threading.Thread) -> None:
        reason = "can't start new thread"
        raise RuntimeError(reason)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    tier.read_ahead(some_keys(4))
    compare(tier, rows, some_keys(4))


@pytest.mark.parametrize("engine", ["auto", "threads"])
def test_a_tier_that_another_thread_closes_leaves_those_it_shares_memory_with(
    tmp_path: Path, engine: "Engine"
) -> None:
    options = TierOptions(engine=engine, system=ScratchSystem(), buffers=Buffers())
    tier, rows = made(tmp_path / "stays", options)
    going, ended = SimpleQueue[DiskTier | None](), list[int]()

    def close() -> None:
        while (other := going.get()) is not None:
            other.close()
            ended.append(1)

    closer = threading.Thread(target=close, daemon=True)
    closer.start()
    for turn in range(40):
        other, _ = made(tmp_path / f"goes {turn}", options)
        for seed in range(2):
            other.read_ahead(some_keys(seed, 5_000))
        going.put(other)
        for seed in range(2, 8):
            tier.read_ahead(some_keys(seed))
            compare(tier, rows, some_keys(seed))
    going.put(None)
    closer.join(LATE_S)

    assert len(ended) == 40
    tier.close()
