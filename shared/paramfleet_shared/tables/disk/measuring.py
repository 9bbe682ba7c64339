"""What a disk can do, measured for a moment: how far it pays to read across a gap."""

from typing import NamedTuple

import numpy as np

from paramfleet_shared.system.clock import Clock
from paramfleet_shared.tables.disk.access.transfers import Arena, Transfers
from paramfleet_shared.tables.disk.pages.files import PageFiles

__all__ = ["UNMEASURED", "Speed", "measure"]

LEAST_PAGES = 4096
"""Of a file that says something about its disk."""

_READS, _ROUNDS = 256, 4
_RUN_BYTES, _RUNS = 1 << 20, 8
_MOST_GAP = 16


class Speed(NamedTuple):
    """What a disk can do."""

    reads_per_s: float
    """Of single pages, many at once."""
    bytes_per_s: float
    """Read one behind the other."""

    def gap(self, page_bytes: int) -> int:
        """Return how many pages that nobody wants may be read between two wanted ones.

        As many as pass in the time of a request, less one or two.
        """
        pages = self.bytes_per_s / (self.reads_per_s * page_bytes)
        less = 1 if pages < 4 else 2
        return min(_MOST_GAP, max(0, int(pages) - less))


UNMEASURED = Speed(50_000.0, 0.8e9)
"""Of a tier with few pages."""


def measure(files: PageFiles, transfers: Transfers, clock: Clock) -> Speed:
    """Return what the disk can do with the pages there are; ``UNMEASURED`` with few.

    Raises:
        OSError: if the system refuses.
    """
    size, num = files.state.page_bytes, files.state.pages
    if num < LEAST_PAGES:
        return UNMEASURED
    rng, arena = np.random.default_rng(), Arena()
    arena.reserve(max(_READS * size, _RUNS * _RUN_BYTES))

    def seconds(firsts: list[int], each: int) -> float:
        numbers = np.array(firsts, np.int64)
        sizes = np.full(numbers.size, each)
        at = arena.address + each * np.arange(numbers.size)
        begun = clock.monotonic()
        transfers.run(files.main.file, files.main.offset + numbers * size, sizes, at)
        return max(1e-6, clock.monotonic() - begun)

    reads, runs = [], []
    per_run = _RUN_BYTES // size
    for _ in range(_ROUNDS):
        reads.append(seconds(rng.integers(0, num, _READS).tolist(), size))
        first = int(rng.integers(0, num - per_run * _RUNS))
        runs.append(seconds([first + per_run * each for each in range(_RUNS)], _RUN_BYTES))
    # The least time has least to do with what else the machine does.
    return Speed(_READS / min(reads), _RUNS * _RUN_BYTES / min(runs))
