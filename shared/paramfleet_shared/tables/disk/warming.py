"""Compile what a tier on disk needs: ``python -m paramfleet_shared.tables.disk.warming``.

Beside ``paramfleet_shared.tables.warm``, which every process runs: most tables have no tier.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from paramfleet_shared.errors import UnavailableError
from paramfleet_shared.tables.disk.kernels.policies import BLOCK, halve
from paramfleet_shared.tables.disk.pages.ranges import END, KeyRange
from paramfleet_shared.tables.disk.shards.residency import Residency
from paramfleet_shared.tables.disk.tier import DiskTier, TierOptions
from paramfleet_shared.tables.kernels.basics.readiness import alone
from paramfleet_shared.tables.rows.layout import VALUE, ColumnSpec, RowLayout

__all__ = ["main", "warm_disk"]

_ROWS = 2000
"""More than the pages of a new tier hold, which are divided for them."""


def warm_disk() -> None:
    """Compile what a tier needs, or load it from the cache; idempotent.

    It writes a tier of a few rows to the folder for temporary files.
    """
    layout = RowLayout((ColumnSpec(VALUE, 1),))
    keys = np.arange(_ROWS, dtype=np.uint64)
    rows = np.zeros((_ROWS, 1), np.uint32)
    with tempfile.TemporaryDirectory(prefix="paramfleet-tier-") as folder:
        for engine in ("auto", "threads"):
            tier = DiskTier(Path(folder), layout, TierOptions(engine=engine))
            for _ in range(2):
                tier.put(keys[:3], rows[:3])
            tier.read(keys)
            list(tier.iterate())
            tier.merge()
            tier.put(keys, rows)
            tier.merge()
            tier.read(keys)
            tier.sweep(lambda keys, _rows: np.ones(keys.size, np.bool_))
            list(tier.iterate())
            tier.close()
    KeyRange.of(0, END, 1).find(keys)
    keys = keys[:3].copy()
    residency = Residency(3)
    residency.enter(np.arange(3))
    residency.touch(keys, np.arange(3), (np.zeros(3, np.uint8), 1, np.zeros(0, np.uint8)))
    residency.leaving(2, 2, keys)
    halve(np.zeros((1, BLOCK), np.uint8))


def main() -> None:
    """Compile what this machine lacks, one process at a time."""
    with alone():
        warm_disk()
    sys.stdout.write("the kernels of the tier on disk are compiled\n")


if __name__ == "__main__":
    try:
        main()
    except UnavailableError as error:
        sys.exit(str(error))
