"""Cold rows on disk, beside what the disk can do: ``python benchmarks/tiers.py --folder DIR``.

See README.md beside this file.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device import bare_s, fio, has_fio, random_reads
from harness import QUICK_BUDGET_S, Suite, markdown_table, suite_of, with_machine, write_json
from paramfleet_shared.tables.disk.access.system import ScratchSystem
from paramfleet_shared.tables.disk.access.transfers import DEPTH, Engine, Transfers
from paramfleet_shared.tables.disk.tier import DiskTier, TierOptions
from paramfleet_shared.tables.disk.warming import warm_disk
from paramfleet_shared.tables.rows.layout import VALUE, ColumnSpec, RowLayout
from rounds import Rounds

BUDGET_S = 60.0

ROWS, QUICK_ROWS = 4_000_000, 200_000
"""Of 16 floats: 0.5 GB of pages, and 25 MB."""

DIM = 16
LAYOUT = RowLayout((ColumnSpec(VALUE, DIM),))

READS = 20_000
"""Keys of a turn of cold reads."""

PUT_ROWS = 50_000
"""Of one put, as victims come."""

BLOCK_BYTES = 1 << 20

METHOD = (
    "A tier of {rows:,} rows of 16 floats, read with O_DIRECT. Limits are fio's in the same "
    f"round ({DEPTH} reads of 4 KiB at once; 1 MiB at a time, 8 at once) where it is "
    "installed, else a bare loop of the same requests; they read the tier's own file. 'cold "
    f"reads' are {READS:,} keys in any order: rows a second, pages being read across gaps, "
    "over the device's reads a second. 'logged' puts as many rows as are merged "
    f"afterwards, {PUT_ROWS:,} at once, and syncs; 'merged' brings them into the pages. The "
    "pass reads all rows page by page; 'a tenth changed' writes all of its pages back, 'half "
    "changed' does on a tier as pservers have it, whose pages are written once. 'disk "
    "MB/s' is what must be read or written at least: each page once, each way. The host of a "
    "virtual disk may cache. All may use all cores."
)


class _Work:
    """The turns, on one tier."""

    def __init__(self, folder: Path, num_rows: int, engine: Engine) -> None:
        self._folder, self._num = folder, num_rows
        self._rng = np.random.default_rng(4)
        self.tier = DiskTier(folder / "tier", LAYOUT, TierOptions(engine=engine))
        begun = time.perf_counter()
        for first in range(0, num_rows, 1_000_000):
            keys = _keys(np.arange(first, min(num_rows, first + 1_000_000)))
            self.tier.write_back(keys, _rows(keys))
        self.load_s = time.perf_counter() - begun
        self.tier.close()
        self.tier = DiskTier(folder / "tier", LAYOUT, TierOptions(engine=engine))
        scratch = TierOptions(engine=engine, system=ScratchSystem())
        self.scratch = DiskTier(folder / "scratch", LAYOUT, scratch)
        """As the shards of pservers have it: no page is written twice."""
        for keys, rows in self.tier.iterate():
            self.scratch.write_back(keys, rows)
        self._transfers = Transfers(engine)
        self._merged = min(num_rows // 4, 1_000_000)

    @property
    def _pages_file(self) -> Path:
        return self._folder / "tier" / "pages"

    @property
    def _pages_bytes(self) -> int:
        stats = self.tier.stats()
        return stats.pages * stats.page_bytes

    def cases(self) -> dict[str, Callable[[], float]]:
        """Return what to call by case."""
        return {
            "device, reads/s": self._device_reads,
            "cold reads, rows/s": self._cold_reads,
            "device, sequential read, MB/s": self._device_reading,
            "pass, disk MB/s": self._passing,
            "device, sequential write, MB/s": self._device_writing,
            "pass, a tenth changed, disk MB/s": self._sweeping,
            "scratch pass, half changed, disk MB/s": self._sweeping_scratch,
            "logged, rows/s": self._logging,
            "merged, rows/s": self._merging,
        }

    def _device_reads(self) -> float:
        return random_reads(
            self._pages_file, num=READS, rng=self._rng, transfers=self._transfers
        )

    def _device_reading(self) -> float:
        if has_fio():
            return fio(self._pages_file, "read", "1m", 8)["bw_bytes"] / 1e6
        offsets = np.arange(0, self._pages_bytes - BLOCK_BYTES, BLOCK_BYTES)
        seconds = bare_s(self._pages_file, offsets, BLOCK_BYTES, self._transfers)
        return offsets.size * BLOCK_BYTES / seconds / 1e6

    def _device_writing(self) -> float:
        path = self._folder / "spare"
        if has_fio():
            found = fio(path, "write", "1m", 8, "--size=256m", "--end_fsync=1")
            path.unlink()
            return found["bw_bytes"] / 1e6
        content = np.random.default_rng(0).bytes(4 << 20)
        begun = time.perf_counter()
        with path.open("wb", buffering=0) as file:
            for _ in range(64):
                file.write(content)
            os.fdatasync(file.fileno())
        path.unlink()
        return 64 * len(content) / (time.perf_counter() - begun) / 1e6

    def _cold_reads(self) -> float:
        num = min(READS, self._num)
        keys = _keys(self._rng.choice(self._num, num, replace=False))
        begun = time.perf_counter()
        found, rows = self.tier.read(keys)
        seconds = time.perf_counter() - begun
        assert found.all()
        assert (rows[:, 0] == _rows(keys)[:, 0]).all()
        return num / seconds

    def _passing(self) -> float:
        begun = time.perf_counter()
        num = sum(len(keys) for keys, _ in self.tier.iterate())
        seconds = time.perf_counter() - begun
        assert num == self._num
        return self._pages_bytes / seconds / 1e6

    def _sweeping(self) -> float:
        begun = time.perf_counter()
        changed = self.tier.sweep(lambda keys, _rows: keys % np.uint64(10) == 0)
        seconds = time.perf_counter() - begun
        assert changed
        return 2 * self._pages_bytes / seconds / 1e6

    def _sweeping_scratch(self) -> float:
        begun = time.perf_counter()
        changed = self.scratch.sweep(lambda keys, _rows: keys % np.uint64(2) == 0)
        seconds = time.perf_counter() - begun
        assert changed
        stats = self.scratch.stats()
        return 2 * stats.pages * stats.page_bytes / seconds / 1e6

    def _logging(self) -> float:
        keys = _keys(self._rng.choice(self._num, self._merged, replace=False))
        rows = _rows(keys)
        begun = time.perf_counter()
        for first in range(0, keys.size, PUT_ROWS):
            self.tier.put(keys[first : first + PUT_ROWS], rows[first : first + PUT_ROWS])
        self.tier.sync()
        return keys.size / (time.perf_counter() - begun)

    def _merging(self) -> float:
        if not self.tier.stats().logged_keys:
            self._logging()
        begun = time.perf_counter()
        self.tier.merge()
        return self._merged / (time.perf_counter() - begun)


def _keys(ranks: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a key of each rank, as ids are: sparse."""
    keys: NDArray[np.uint64] = ranks.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return keys


def _rows(keys: NDArray[np.uint64]) -> NDArray[np.uint32]:
    return np.repeat((keys >> np.uint64(32)).astype(np.uint32), DIM).reshape(-1, DIM)


def measure(
    folder: Path, *, num_rows: int = ROWS, budget_s: float = BUDGET_S, engine: Engine = "auto"
) -> Suite:
    """Measure for about ``budget_s`` seconds in a folder of the disk."""
    warm_disk()
    with tempfile.TemporaryDirectory(dir=folder) as path:
        work = _Work(Path(path), num_rows, engine)
        cases = work.cases()
        rounds = Rounds(list(cases), budget_s=budget_s)
        rounds.run(cases)
        stats = work.tier.stats()
        work.tier.close()
        work.scratch.close()
    device, reading, writing = (name for name in cases if name.startswith("device"))
    limits = {
        "cold reads, rows/s": device,
        "pass, disk MB/s": reading,
        "pass, a tenth changed, disk MB/s": writing,
        "scratch pass, half changed, disk MB/s": writing,
    }
    suite = suite_of(
        "tiers",
        rows=[_row(name, limits.get(name), rounds) for name in cases],
        headlines={
            "cold_reads_vs_device": rounds.headline("cold reads, rows/s", device),
            "pass_vs_sequential": rounds.headline("pass, disk MB/s", reading),
            "changing_pass_vs_sequential": rounds.headline(
                "scratch pass, half changed, disk MB/s", writing
            ),
            "logged_rows_per_s": rounds.rate_headline("logged, rows/s"),
            "merged_rows_per_s": rounds.rate_headline("merged, rows/s"),
        },
        method=METHOD.format(rows=num_rows),
        turns={"tiers": rounds.turns},
    )
    suite["details"] = {
        **suite.get("details", {}),
        "engine": f"{stats.engine} {stats.engine_reason}".strip(),
        "gap": stats.gap,
        "pages": stats.pages,
        "full": stats.merged_rows / stats.pages / ((stats.page_bytes - 32) // (8 + 4 * DIM)),
        "overflow_pages": stats.overflow_pages,
        "loaded_rows_per_s": num_rows / work.load_s,
    }
    return suite


def _row(name: str, limit: str | None, rounds: Rounds) -> dict[str, Any]:
    return {
        "case": name,
        "figure": rounds.figure(name),
        "vs_device": None if limit is None else rounds.ratio(name, limit),
        "cpu_us": 1e6 * rounds.cpu_s(name),
    }


def main() -> int:
    """Be the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path(), help="on the disk to measure")
    parser.add_argument("--rows", type=int, help="rows of the tier")
    parser.add_argument("--engine", choices=["auto", "ring", "threads"], default="auto")
    parser.add_argument("--quick", action="store_true", help="see that it works, in seconds")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds to measure")
    parser.add_argument("--output", type=Path, help="write the result here")
    options = parser.parse_args()
    budget_s = QUICK_BUDGET_S if options.quick else options.budget
    num_rows = options.rows or (QUICK_ROWS if options.quick else ROWS)
    result = with_machine(
        lambda: measure(
            options.folder, num_rows=num_rows, budget_s=budget_s, engine=options.engine
        )
    )
    for line in markdown_table(result["rows"]):
        print(line)
    print(json.dumps(result["details"], default=str)[:600])
    if options.output is not None:
        write_json(options.output, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
