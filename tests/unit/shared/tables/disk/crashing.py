"""Changes rows of a tier until it is killed, and says each change before and after it.

Arguments: the folder and a seed. For each line of its input, a number, a fork changes rows from
that number on: its lines are ``process PID``, ``begin N`` and ``done N``. What change N is
follows from the seed and N alone (``change``). ``ended`` says that the fork was killed.
"""

import os
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tests.unit.shared.tables.disk.ledger import LAYOUT, Rows, forget, note, some_rows

from paramfleet_shared.tables.disk.log import writeahead
from paramfleet_shared.tables.disk.pages import rebuilding
from paramfleet_shared.tables.disk.tier import DiskTier, TierOptions
from paramfleet_shared.tables.disk.warming import warm_disk

KEYS = 20_000

SWEEPS_EVERY = 8
"""So many changes; a sweep writes all pages as they are."""

LARGE = 1 << 20

BATCH_BYTES = 128 << 10
"""Of pages that are replaced at once: a sweep has many batches."""


def change(seed: int, number: int) -> tuple[NDArray[np.uint64], NDArray[np.uint32] | None]:
    """Return keys, and rows to be put, or None if they are removed."""
    rng = np.random.default_rng([seed, number])
    keys = rng.integers(0, KEYS, int(rng.integers(1, 800))).astype(np.uint64)
    return keys, some_rows(rng, keys.size, LAYOUT) if rng.random() < 0.8 else None


def apply(rows: Rows, seed: int, number: int) -> None:
    """Make a change in what must be there."""
    keys, values = change(seed, number)
    if values is None:
        forget(rows, keys)
    else:
        note(rows, keys, values)


def change_for_ever(folder: Path, seed: int, number: int) -> None:
    """Change rows until the process is killed."""
    rebuilding.BATCH_BYTES = BATCH_BYTES
    writeahead.LEAST_OF_RANGE = 1 + LARGE * (seed % 2)  # a range of keys at a time, or all
    tier = DiskTier(folder, LAYOUT, TierOptions(memory_bytes=1))
    while True:
        keys, values = change(seed, number)
        say(f"begin {number}")
        if values is None:
            tier.remove(keys)
        else:
            tier.put(keys, values)
        say(f"done {number}")
        if tier.wants_merge:
            tier.merge_step()
        if number % SWEEPS_EVERY == 0:
            tier.sweep(lambda keys, _rows: np.ones(len(keys), bool))
        number += 1


def say(line: str) -> None:
    """Write a line at once."""
    os.write(1, f"{line}\n".encode())


def main(folder: str, seed: str) -> None:
    """Fork for each line."""
    warm_disk()
    for line in sys.stdin:
        process = os.fork()
        if not process:
            say(f"process {os.getpid()}")
            change_for_ever(Path(folder), int(seed), int(line))
        os.waitpid(process, 0)
        say("ended")


if __name__ == "__main__":
    main(*sys.argv[1:])
