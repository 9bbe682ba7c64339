"""Steps of a table with rows on disk: ``python benchmarks/cold_rows.py --folder DIR``.

See README.md beside this file.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bounded import NoBoundError, with_memory_max
from device import random_reads
from harness import QUICK_BUDGET_S, Suite, markdown_table, suite_of, with_machine, write_json
from paramfleet_shared.tables.disk.access.transfers import Transfers
from paramfleet_shared.tables.disk.shards.moving import BESIDE_BYTES, TieredOptions
from paramfleet_shared.tables.disk.shards.shard import TieredShard
from paramfleet_shared.tables.disk.warming import warm_disk
from paramfleet_shared.tables.memory.budget import MemoryBudget
from paramfleet_shared.tables.sparse import INDEX_BYTES, SparseShard
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec
from paramfleet_shared.tables.warm import warm
from rounds import Ratio, Rounds, Turn, own_cpu_s

BUDGET_S = 90.0

ROWS, QUICK_ROWS = 2_000_000, 40_000
"""Of 16 floats and as many of Adagrad: 128 bytes."""
SHARE = 10
"""Of so many rows one is in memory, where the others are on disk."""

DIM = 16
SAMPLES, FIELDS = 512, 26
EXPONENT = 1.05
STEPS = 16
"""Of a turn."""
REPEATS = 10
"""Times that they are done where nothing waits for a disk: they are short."""
LOADED = 1 << 17
"""Rows that are loaded at once."""
READS = 20_000
"""Of the loop that shows what the disk can do, where there is no fio."""

MEMORY = "memory"
ALL_FIT = "budget for all rows"
DEVICE = "device, reads/s"
TENTH = "budget for a tenth"
KNOWN = "a tenth, keys known"
ALONE = "its steps alone"
REFERENCE = "reference"
"""Isn't measured: it does the steps once, as those with rows on disk."""
CASES = (MEMORY, ALL_FIT, DEVICE, TENTH, KNOWN)

METHOD = (
    "{rows:,} rows of 16 floats with Adagrad. A step pulls the rows of 512 samples of 26 ids, "
    "drawn by Zipf's law of exponent 1.05 over all rows and made different, and pushes a "
    "gradient for each; a turn is {steps} steps, the same ones for each case of a round, "
    "and new ones each round; 'memory' and 'budget for all rows' do them {repeats} times. "
    "'memory' is a shard without a budget, the others one with. "
    "Reads of pages bypass the page cache; the host of a virtual disk may have one. "
    "'device' is fio's random reads of 4 KiB, 64 at once, where it is installed, else a bare "
    "loop. 'misses/sample' are rows that were read from disk, and 'vs device' misses a second "
    "over the device's reads a second in the same round: what merges write is in that time. "
    "'keys known' asks for all ids of the turn in one call before, which counts; 'its steps "
    "alone' leaves that out. Figures of 'memory', 'budget for all rows' and 'its steps alone' "
    "are of the median of a turn's steps, the others of all. One thread "
    "does it all: with 'cores' near 1 the processor is the limit, not the disk. At the end "
    "all rows are those of a shard without a budget that did the same, or the run fails."
)


class _Batch(NamedTuple):
    ids: NDArray[np.int64]
    grads: NDArray[np.float32]


class _Work:
    """The shards, with the same rows, and their steps."""

    def __init__(self, folder: Path, num_rows: int) -> None:
        self._rng = np.random.default_rng(4)
        self._num = num_rows
        self._below = np.cumsum(np.arange(1, num_rows + 1, dtype=np.float64) ** -EXPONENT)
        self._step = dict.fromkeys((*CASES, REFERENCE), 0)
        self._numbers = count()
        self._folder = folder
        self._transfers = Transfers("auto")
        self.plain = {MEMORY: SparseShard(_table()), REFERENCE: SparseShard(_table())}
        self.tiered = {
            ALL_FIT: self._tiered(2 * num_rows),
            TENTH: self._tiered(num_rows // SHARE),
            KNOWN: self._tiered(num_rows // SHARE),
        }
        self.load_s = {name: self._load(shard) for name, shard in self._shards.items()}
        self.batches: list[_Batch] = []
        self.alone: list[float] = []
        """Samples a second of the steps whose keys were known, by rounds."""

    @property
    def _shards(self) -> dict[str, SparseShard]:
        return {**self.plain, **self.tiered}

    def _tiered(self, rows: int) -> TieredShard:
        row_bytes = SparseShard(_table(), max_rows=1).layout.row_bytes
        budget = MemoryBudget(rows * (row_bytes + INDEX_BYTES + BESIDE_BYTES))
        options = TieredOptions(budget, lambda: self._folder / f"tier-{next(self._numbers)}")
        return TieredShard(_table(), options=options)

    def _load(self, shard: SparseShard) -> float:
        """Load all rows, the least used first; return how long it took."""
        states = np.full((LOADED, DIM), 0.1, np.float32)
        begun = time.perf_counter()
        for first in reversed(range(0, self._num, LOADED)):
            ranks = np.arange(first, min(self._num, first + LOADED))
            values = np.repeat(ranks % 64 / 64, DIM).astype(np.float32).reshape(-1, DIM)
            load = shard.load if isinstance(shard, TieredShard) else shard.assign
            load(_ids(ranks), values, states[: ranks.size])
        return time.perf_counter() - begun

    def draw(self) -> None:
        """Draw the steps of a round."""
        self.batches = []
        for _ in range(STEPS):
            draws = self._rng.random(SAMPLES * FIELDS) * self._below[-1]
            ids = _ids(self._rng.permutation(np.unique(np.searchsorted(self._below, draws))))
            grads = self._rng.standard_normal((ids.size, DIM), np.float32)
            self.batches.append(_Batch(ids, grads))
        self._steps(REFERENCE)

    def cases(self) -> dict[str, Callable[[], float]]:
        """Return what to call by case: each returns units a second."""
        return {
            MEMORY: lambda: self._repeated(MEMORY),
            ALL_FIT: lambda: self._repeated(ALL_FIT),
            DEVICE: self._device_reads,
            TENTH: lambda: STEPS * SAMPLES / sum(self._steps(TENTH)),
            KNOWN: self._known,
        }

    def _repeated(self, name: str) -> float:
        return _median_rate([each for _ in range(REPEATS) for each in self._steps(name)])

    def _steps(self, name: str) -> list[float]:
        """Do the steps of a round; return the seconds of each."""
        shard = self._shards[name]
        out = np.empty((SAMPLES * FIELDS, DIM), np.float32)
        times = [time.perf_counter()]
        for ids, grads in self.batches:
            self._step[name] += 1
            shard.pull(ids, out[: ids.size], create=True)
            shard.push(ids, grads, lr=0.05, step=self._step[name], unique=True)
            times.append(time.perf_counter())
        return np.diff(times).tolist()

    def _known(self) -> float:
        shard = self.tiered[KNOWN]
        begun = time.perf_counter()
        ids = np.unique(np.concatenate([batch.ids for batch in self.batches]))
        ids = shard.fetch_order(ids)
        while ids.size:
            ids = ids[shard.fetch(ids).taken :]
        before = time.perf_counter() - begun
        seconds = self._steps(KNOWN)
        self.alone.append(_median_rate(seconds))
        return STEPS * SAMPLES / (before + sum(seconds))

    def _device_reads(self) -> float:
        path = self._folder / "tier-0" / "pages"
        return random_reads(path, num=READS, rng=self._rng, transfers=self._transfers)

    def check(self) -> None:
        """See that all shards have the same rows.

        Raises:
            AssertionError: if they haven't.
        """
        for first in range(0, self._num, LOADED):
            ids = _ids(np.arange(first, min(self._num, first + LOADED)))
            for name, shard in self.tiered.items():
                alike = self.plain[MEMORY if name == ALL_FIT else REFERENCE]
                for mine, other in zip(shard.read(ids), alike.read(ids), strict=True):
                    assert np.array_equal(mine, other), f"rows differ: {name}"


def _table() -> TableSpec:
    return TableSpec(
        name="cold",
        kind="sparse",
        dim=DIM,
        num_shards=1,
        initializer=InitializerSpec(kind="zeros"),
        optimizer=OptimizerSpec(rule="adagrad"),
    )


def _ids(ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return an id of each rank, as ids are: sparse."""
    return (ranks.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)


def _median_rate(seconds: list[float]) -> float:
    return SAMPLES / statistics.median(seconds)


class _Found(NamedTuple):
    rounds: Rounds
    misses: dict[str, list[float]]
    """A sample, of each case with rows on disk, by rounds."""
    cores: dict[str, list[float]]
    """That each case used, by rounds."""
    alone: list[float]
    """Samples a second of ``ALONE``, by rounds."""


def _run(work: _Work, rounds: Rounds) -> _Found:
    """Run the cases in turns; steps are drawn beside the clock."""
    cases = work.cases()
    found = _Found(rounds, {TENTH: [], KNOWN: []}, {name: [] for name in cases}, work.alone)
    work.alone.clear()
    drawn = -1
    for name in rounds.turns:
        number = len(rounds.figures[name])
        if number != drawn:
            work.draw()
            drawn = number
        shard = work.tiered.get(name)
        read = 0 if shard is None else shard.cold.read
        wall, cpu = time.perf_counter(), own_cpu_s()
        rate = cases[name]()
        wall, cpu = time.perf_counter() - wall, own_cpu_s() - cpu
        repeats = REPEATS if name in (MEMORY, ALL_FIT) else 1
        rounds.figures[name].append(Turn(rate, cpu / (STEPS * SAMPLES * repeats)))
        found.cores[name].append(cpu / wall)
        if shard is not None and name in found.misses:
            found.misses[name].append((shard.cold.read - read) / (STEPS * SAMPLES))
    return found


def measure(
    folder: Path, *, num_rows: int = ROWS, budget_s: float = BUDGET_S, warm_rounds: int = 3
) -> Suite:
    """Measure for about ``budget_s`` seconds in a folder of the disk.

    Args:
        folder: Where rows go.
        num_rows: Of each shard.
        budget_s: Seconds of all rounds.
        warm_rounds: Rounds before those, which say nothing: memory has then what is used often.
    """
    warm(_table())
    warm_disk()
    with tempfile.TemporaryDirectory(dir=folder, prefix="cold-rows-") as path:
        work = _Work(Path(path), num_rows)
        cases = work.cases()
        for _ in range(warm_rounds):
            work.draw()
            for name in (MEMORY, ALL_FIT, TENTH, KNOWN):
                cases[name]()
        found = _run(work, Rounds(CASES, budget_s=budget_s))
        work.check()
        stats = {name: shard.tier_stats() for name, shard in work.tiered.items()}
        assert stats[ALL_FIT] is None, "all rows fit"
        load_s = work.load_s
    rounds = found.rounds
    suite = suite_of(
        "cold_rows",
        rows=[*(_row(name, found) for name in CASES), _row_alone(found)],
        headlines={
            "all_fit_vs_memory": rounds.headline(ALL_FIT, MEMORY),
            "all_fit_vs_memory_cpu": rounds.cpu_headline(ALL_FIT, MEMORY),
            "misses_vs_device": rounds.turns.headline(_vs_device(TENTH, found)),
            "known_vs_memory": rounds.headline(KNOWN, MEMORY),
            "known_steps_vs_memory": rounds.turns.headline(_alone_vs_memory(found)),
        },
        method=METHOD.format(rows=num_rows, steps=STEPS, repeats=REPEATS),
        turns={"cold_rows": rounds.turns},
    )
    tier = stats[TENTH]
    assert tier is not None, "a tenth fits"
    suite["details"] = {
        **suite.get("details", {}),
        "engine": f"{tier.engine} {tier.engine_reason}".strip(),
        "is_direct": tier.is_direct,
        "gap": tier.gap,
        "load_s": load_s,
    }
    return suite


def _vs_device(name: str, found: _Found) -> list[float]:
    """Return the misses a second of a case over the device's reads, by rounds."""
    figures = found.rounds.figures
    return [
        turn.rate * misses / device.rate
        for turn, misses, device in zip(
            figures[name], found.misses[name], figures[DEVICE], strict=True
        )
    ]


def _alone_vs_memory(found: _Found) -> list[float]:
    memory = found.rounds.figures[MEMORY]
    return [alone / turn.rate for alone, turn in zip(found.alone, memory, strict=True)]


def _row_alone(found: _Found) -> dict[str, Any]:
    kept = found.rounds.turns.kept
    return {
        "case": ALONE,
        "samples_per_s": Ratio.of(kept(found.alone)),
        "vs_memory": Ratio.of(kept(_alone_vs_memory(found))),
    }


def _row(name: str, found: _Found) -> dict[str, Any]:
    rounds = found.rounds
    if name == DEVICE:
        return {"case": name, "reads_per_s": rounds.figure(name)}

    def kept(values: list[float]) -> Ratio:
        return Ratio.of(rounds.turns.kept(values))

    misses = found.misses.get(name)
    return {
        "case": name,
        "samples_per_s": rounds.figure(name),
        "vs_memory": None if name == MEMORY else rounds.ratio(name, MEMORY),
        "misses_per_sample": None if misses is None else kept(misses),
        "vs_device": None if misses is None else kept(_vs_device(name, found)),
        "cpu_ms_per_step": 1e3 * SAMPLES * rounds.cpu_s(name),
        "cores": kept(found.cores[name]),
    }


def main() -> int:
    """Be the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path(), help="on the disk to measure")
    parser.add_argument("--rows", type=int, help="rows of each shard")
    parser.add_argument("--quick", action="store_true", help="see that it works, in seconds")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds to measure")
    parser.add_argument(
        "--memory-max",
        type=int,
        metavar="BYTES",
        help="bound this process's memory by a cgroup of version 2, where one can be made",
    )
    parser.add_argument("--output", type=Path, help="write the result here")
    options = parser.parse_args()
    budget_s = QUICK_BUDGET_S if options.quick else options.budget
    num_rows = options.rows or (QUICK_ROWS if options.quick else ROWS)
    with contextlib.ExitStack() as stack:
        bound = "memory isn't bounded"
        if options.memory_max is not None:
            try:
                group = stack.enter_context(with_memory_max(options.memory_max))
                bound = f"{options.memory_max:,} bytes of memory in {group}"
            except NoBoundError as error:
                bound = f"memory isn't bounded: {error}"
            print(bound)
        result = with_machine(
            lambda: measure(options.folder, num_rows=num_rows, budget_s=budget_s)
        )
    result["details"]["memory_max"] = bound
    for line in markdown_table(result["rows"]):
        print(line)
    for name, value in result["summary"].items():
        print(f"{name}: {value} {result['details']['refused'].get(name, '')}")
    print(f"load before {result['load_average_before']}, after {result['load_average_after']}")
    if options.output is not None:
        write_json(options.output, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
