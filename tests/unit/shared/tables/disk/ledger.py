"""What a tier must hold, and how it is compared with that."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.disk.tier import DiskTier, TierOptions
from paramfleet_shared.tables.rows.layout import VALUE, ColumnSpec, RowLayout

LAYOUT = RowLayout((ColumnSpec(VALUE, 4), ColumnSpec("seen", 1)))
"""5 words: 145 rows a page."""

WIDE = RowLayout((ColumnSpec(VALUE, 256), ColumnSpec("mean", 256)))
"""A page of 32 KiB has 15 rows: pages overflow soon."""

SMALL = TierOptions(memory_bytes=1)
"""Merges after a thousand keys."""

Rows = dict[int, bytes]
"""The row of each key."""


def some_rows(rng: np.random.Generator, num: int, layout: RowLayout) -> NDArray[np.uint32]:
    """Return rows of any bits: uint32 [num, W]."""
    return rng.integers(0, 1 << 32, (num, layout.pitch), np.uint32)


def note(rows: Rows, keys: NDArray[np.uint64], values: NDArray[np.uint32]) -> None:
    """Put rows to what must be there."""
    rows.update(zip(keys.tolist(), (row.tobytes() for row in values), strict=True))


def forget(rows: Rows, keys: NDArray[np.uint64]) -> None:
    """Remove rows from what must be there."""
    for key in keys.tolist():
        rows.pop(key, None)


def content(tier: DiskTier) -> Rows:
    """Return all rows, each key once."""
    rows: Rows = {}
    for keys, values in tier.iterate():
        before = len(rows)
        note(rows, keys, values)
        assert len(rows) == before + len(keys), "a key came twice"
    return rows


def check(tier: DiskTier, rows: Rows, others: NDArray[np.uint64]) -> None:
    """Compare all that a tier holds, read in both ways, with what must be there.

    ``others`` are keys that may be there or not.
    """
    assert content(tier) == rows
    keys = np.append(np.array(sorted(rows), np.uint64), others)
    found, values = tier.read(keys)
    assert found.tolist() == [key in rows for key in keys.tolist()]
    for key, value in zip(keys[found].tolist(), values[found], strict=True):
        assert value.tobytes() == rows[key]


def opened(folder: Path, layout: RowLayout = LAYOUT) -> DiskTier:
    """Return a tier that merges often."""
    return DiskTier(folder, layout, SMALL)
