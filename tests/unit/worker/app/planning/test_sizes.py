"""Sizes of a plan are those of real rows, in memory and on disk."""

from pathlib import Path

import numpy as np
import pytest

from paramfleet_shared.tables.disk.access.system import ScratchSystem
from paramfleet_shared.tables.disk.tier import DiskTier, TierOptions
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_worker.app.planning.sizes import row_sizes, spec_for, tier_sizes

ROWS = 60_000


def test_rows_in_memory_take_what_is_planned() -> None:
    spec = spec_for(dim=16, optimizer="adagrad", accessor=None, storage="float32")
    sizes = row_sizes(spec)
    shard = SparseShard(spec)

    shard.create(np.arange(10 * ROWS))

    assert sizes.row == 128
    assert sizes.value == 64
    assert shard.num_bytes == pytest.approx(10 * ROWS * (sizes.row + sizes.index), rel=0.03)
    assert shard.num_bytes <= 10 * ROWS * (sizes.row + sizes.index)


def test_a_row_with_an_accessor_counts_shows_and_clicks() -> None:
    spec = spec_for(dim=9, optimizer="sgd", accessor="SparseAdaGradSGDRule", storage="float32")

    assert spec.dim == 11
    assert row_sizes(spec).row == 64


@pytest.mark.slow
def test_a_tier_takes_what_is_planned(tmp_path: Path) -> None:
    spec = spec_for(dim=16, optimizer="sgd", accessor=None, storage="float32")
    planned = tier_sizes(spec, rows=ROWS, owners=1, budget_bytes=64 << 20)
    options = TierOptions(system=ScratchSystem())
    tier = DiskTier(tmp_path, RowLayout.of(spec), options)
    keys = np.arange(ROWS, dtype=np.uint64)

    tier.write_back(keys, np.zeros((ROWS, 16), np.uint32))
    tier.close()

    assert (tmp_path / "pages").stat().st_size == planned.pages
    assert (tmp_path / "overflow").stat().st_size < 0.05 * planned.pages
    assert (tmp_path / "journal").stat().st_size == 0
    assert planned.log_memory == 8 << 20


def test_owners_share_the_memory_for_keys_of_the_log() -> None:
    spec = spec_for(dim=16, optimizer="sgd", accessor=None, storage="float32")

    one, four = (
        tier_sizes(spec, rows=4_000_000, owners=n, budget_bytes=64 << 30) for n in (1, 4)
    )

    assert four.log_memory == 4 * one.log_memory == 512 << 20
    assert four.pages == pytest.approx(one.pages, rel=0.1)
