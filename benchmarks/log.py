"""MB of commands a second through a pserver's log: ``python benchmarks/log.py --folder DIR``.

Beside plain sequential writing of the same bytes to the same disk. See README.md beside this
file.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness import QUICK_BUDGET_S, Suite, markdown_table, suite_of, with_machine, write_json
from paramfleet_pserver.durability.log.recovery import open_log
from paramfleet_pserver.durability.log.writer import LogWriter
from paramfleet_shared.system.clock import SystemClock
from rounds import Ratio, Rounds

BUDGET_S = 60.0

TOTAL_BYTES = 256 << 20
"""Of a turn."""

SIZES = {"1.7 MB": 1_700_000, "64 KiB": 64 << 10, "1 KiB": 1 << 10}
"""Bytes of a command: a push of 23,600 rows of 16, a smaller one, one of few rows."""

FEW_BYTES = 32 << 20
"""Of a turn with commands of 1 KiB."""

PLAIN = "plain"
PLAIN_BYTES = 4 << 20
"""Of one write of the plain file."""

RATE = 300
"""Commands a second of the turns that measure the time until durable."""

METHOD = (
    f"A turn appends {TOTAL_BYTES >> 20} MiB of commands of one size ({FEW_BYTES >> 20} MiB "
    "of 1 KiB), waiting when as much waits as may, and ends when all are durable; each log is "
    f"in a new folder. The plain turn makes a file, writes as many bytes, {PLAIN_BYTES >> 20} "
    "MiB at a time, and calls fdatasync once, as `dd conv=fdatasync` does. The paced turn "
    f"appends {RATE} commands of 64 KiB a second for a second; the time until a command is "
    "durable is from its append until the event loop knows. A round runs every case once; a "
    "ratio is of one round, '_cpu' of processor time. All threads may use all cores."
)


class _Work:
    """The turns, in new folders on the disk that is measured."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        content = np.random.default_rng(3).integers(0, 256, max(SIZES.values()), np.uint8)
        self._content = content.tobytes()
        self._lags_s: list[float] = []
        self.median_ms: list[float] = []
        self.p99_ms: list[float] = []

    def cases(self) -> dict[str, Callable[[], float]]:
        """Return what to call by case; each returns MB a second."""
        logs = {name: partial(self._log, size) for name, size in SIZES.items()}
        return {PLAIN: self._plain, **logs, "paced": self._paced}

    def _plain(self) -> float:
        piece = (self._content * 3)[:PLAIN_BYTES]
        begun = time.perf_counter()
        with tempfile.NamedTemporaryFile(dir=self._folder, buffering=0) as file:
            for _ in range(TOTAL_BYTES // PLAIN_BYTES):
                file.write(piece)
            os.fdatasync(file.fileno())
            return TOTAL_BYTES / (time.perf_counter() - begun) / 1e6

    def _log(self, size: int) -> float:
        total = FEW_BYTES if size == SIZES["1 KiB"] else TOTAL_BYTES
        return self._written(partial(_append_all, count=total // size, part=self._part(size)))

    def _paced(self) -> float:
        self._lags_s = []
        rate = self._written(partial(self._append_paced, part=self._part(SIZES["64 KiB"])))
        self.median_ms.append(1e3 * float(np.quantile(self._lags_s, 0.5)))
        self.p99_ms.append(1e3 * float(np.quantile(self._lags_s, 0.99)))
        return rate

    def _part(self, size: int) -> memoryview:
        return memoryview(self._content)[:size]

    def _written(self, act: Callable[[LogWriter], Any]) -> float:
        """Return MB a second of a coroutine that returns its bytes."""
        with tempfile.TemporaryDirectory(dir=self._folder) as path:
            return asyncio.run(_timed(Path(path), act))

    async def _append_paced(self, writer: LogWriter, part: memoryview) -> int:
        begun = time.perf_counter()

        async def append(number: int) -> None:
            await asyncio.sleep(begun + number / RATE - time.perf_counter())
            appended = time.perf_counter()
            await writer.durable(writer.append(part))
            self._lags_s.append(time.perf_counter() - appended)

        await asyncio.gather(*map(append, range(RATE)))
        return RATE * len(part)


async def _timed(path: Path, act: Callable[[LogWriter], Any]) -> float:
    writer = open_log(path, job="benchmark").continue_with(term=1, clock=SystemClock())
    writer.start()
    begun = time.perf_counter()
    num_bytes = await act(writer)
    rate = num_bytes / (time.perf_counter() - begun) / 1e6
    await writer.close()
    return float(rate)


async def _append_all(writer: LogWriter, count: int, part: memoryview) -> int:
    most_bytes = 48 << 20
    for number in range(count):
        if writer.waiting_bytes > most_bytes:
            await writer.durable(max(1, writer.position - most_bytes // len(part) // 2))
        elif number % 64 == 0:
            await asyncio.sleep(0)
        writer.append(part)
    await writer.durable(writer.position)
    return count * len(part)


def measure(folder: Path, *, budget_s: float = BUDGET_S) -> Suite:
    """Measure for about ``budget_s`` seconds in a folder of the disk."""
    work = _Work(folder)
    cases = work.cases()
    rounds = Rounds(list(cases), budget_s=budget_s)
    rounds.run(cases)
    median, p99 = rounds.turns.headline(work.median_ms), rounds.turns.headline(work.p99_ms)
    return suite_of(
        "log",
        rows=[_row(name, rounds) for name in cases]
        + [
            {"time": "until durable, median, ms", "figure": Ratio.of(median.values)},
            {"time": "until durable, p99, ms", "figure": Ratio.of(p99.values)},
        ],
        headlines={
            "log_vs_plain": rounds.headline("1.7 MB", PLAIN),
            "log_vs_plain_cpu": rounds.cpu_headline("1.7 MB", PLAIN),
            "log_mb_per_s": rounds.rate_headline("1.7 MB"),
            "durable_median_ms": median,
            "durable_p99_ms": p99,
        },
        method=METHOD,
        turns={"log": rounds.turns},
    )


def _row(name: str, rounds: Rounds) -> dict[str, Any]:
    return {
        "case": name,
        "MB_per_s": rounds.figure(name),
        "cpu_ms_per_MB": 1e3 * rounds.cpu_s(name),
        "vs_plain": rounds.ratio(name, PLAIN),
        "vs_plain_cpu": rounds.cpu_ratio(name, PLAIN),
    }


def main() -> int:
    """Be the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path(), help="on the disk to measure")
    parser.add_argument("--quick", action="store_true", help="see that it works, in seconds")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds to measure")
    parser.add_argument("--output", type=Path, help="write the result here")
    options = parser.parse_args()
    budget_s = QUICK_BUDGET_S if options.quick else options.budget
    result = with_machine(lambda: measure(options.folder, budget_s=budget_s))
    for line in markdown_table(result["rows"]):
        print(line)
    if options.output is not None:
        write_json(options.output, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
