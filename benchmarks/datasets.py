"""MB of MultiSlot text a second, and samples: ``python benchmarks/datasets.py``.

The parser beside one in plain Python, and the datasets around it. See README.md beside this
file.
"""

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import paramfleet as fleet
from harness import Suite, run_script, suite_of
from paramfleet.data.parsing.bad_lines import BadLines
from paramfleet.data.parsing.parser import Parser, Scratch
from paramfleet.data.parsing.slots import Layout, Slot
from paramfleet.data.reading.files import CHUNK_BYTES
from rounds import Rounds, least_rounds

BUDGET_S = 30.0

NUM_LINES = 20_000
FEW_LINES = 2_000
"""Lines of a turn, and of one of the plain parser, which takes some fifty times as long."""

NUM_FILES = 4
BATCH = 512
NUM_IDS = 26
NUM_FLOATS = 13

SLOTS = [
    Slot("click", dense=True),
    Slot("dense", "float32", dense=True, width=NUM_FLOATS),
    *(Slot(f"C{number}") for number in range(NUM_IDS)),
]

PLAIN = "plain Python parser"
CASES = {
    PLAIN: "text in memory to arrays by slot",
    "parser": "text in memory to rows, 1 MiB at a time",
    "QueueDataset, 1 thread": "files to batches of tensors",
    "QueueDataset, 2 threads": "files to batches of tensors",
    "QueueDataset, pipe": "files through a command that copies, to batches of tensors",
    "InMemoryDataset, load": "files to memory",
    "InMemoryDataset, shuffle": "memory to another order, then to batches of tensors",
}

METHOD = (
    f"Lines as PaddleRec's for Criteo: a label, {NUM_FLOATS} floats of up to 17 digits and "
    f"{NUM_IDS} ids below 10^6, each in a slot of its own, about 0.5 KB. The plain parser "
    "splits a line at blanks and calls int and float; it has the same slots and makes the "
    f"same arrays. Files are in the page cache, batches are of {BATCH} samples. A round runs "
    "every case once; a ratio is of one round, '_cpu' of processor time. All cases may use all "
    "cores: some have threads or processes."
)


def measure(*, budget_s: float = BUDGET_S) -> Suite:
    """Measure for about ``budget_s`` seconds."""
    with tempfile.TemporaryDirectory(prefix="datasets-") as folder:
        work = _Work(Path(folder))
        rounds = Rounds(list(CASES), budget_s=budget_s, least=least_rounds(budget_s))
        rounds.run(work.cases())
    return suite_of(
        "datasets",
        rows=[_row(name, what, rounds, work) for name, what in CASES.items()],
        headlines={
            "parser_vs_python": rounds.headline("parser", PLAIN),
            "parser_vs_python_cpu": rounds.cpu_headline("parser", PLAIN),
            "parser_mb_per_s": rounds.rate_headline("parser"),
            "queue_dataset_mb_per_s": rounds.rate_headline("QueueDataset, 1 thread"),
            "memory_load_mb_per_s": rounds.rate_headline("InMemoryDataset, load"),
        },
        method=METHOD,
        turns={"datasets": rounds.turns},
        details={"bytes_of_a_line": work.line_bytes},
    )


class _Work:
    """The files, and one turn of each case; a turn's figure is its MB of text a second."""

    def __init__(self, folder: Path) -> None:
        lines = list(_lines(NUM_LINES))
        self._text = "".join(lines).encode()
        self._few = "".join(lines[:FEW_LINES]).encode()
        self.line_bytes = len(self._text) / NUM_LINES
        self._files = [str(folder / f"part-{number}") for number in range(NUM_FILES)]
        for file in self._files:
            Path(file).write_bytes(self._text)
        self._stored = self._memory()
        self._stored.load_into_memory()
        for turn in self.cases().values():
            turn()  # kernels are compiled, pages are in memory

    def cases(self) -> dict[str, Callable[[], float]]:
        """Return the turns by case."""
        size = len(self._text) * NUM_FILES
        turns: list[tuple[int, Callable[[], Any]]] = [
            (len(self._few), lambda: parse_plainly(self._few)),
            (len(self._text), lambda: _parse(self._text)),
            (size, lambda: _use(self._queue(thread_num=1))),
            (size, lambda: _use(self._queue(thread_num=2))),
            (size, lambda: _use(self._queue(thread_num=2, pipe_command="cat | cat"))),
            (size, lambda: self._memory(thread_num=2).load_into_memory()),
            (size, self._shuffle),
        ]
        return {
            name: partial(_rate, size, act)
            for name, (size, act) in zip(CASES, turns, strict=True)
        }

    def _queue(self, **settings: Any) -> fleet.data.QueueDataset:
        dataset = fleet.data.QueueDataset()
        dataset.init(use_var=SLOTS, batch_size=BATCH, **settings)
        dataset.set_filelist(self._files)
        return dataset

    def _memory(self, **settings: Any) -> fleet.data.InMemoryDataset:
        dataset = fleet.data.InMemoryDataset()
        dataset.init(use_var=SLOTS, batch_size=BATCH, **settings)
        dataset.set_filelist(self._files)
        return dataset

    def _shuffle(self) -> None:
        self._stored.local_shuffle()
        _use(self._stored)


def parse_plainly(text: bytes) -> list[tuple[NDArray[Any], NDArray[np.int64]]]:
    """Return values and offsets of each slot, by Python's own means."""
    kinds = [(float, np.float32) if s.dtype == "float32" else (int, np.int64) for s in SLOTS]
    values: list[list[Any]] = [[] for _ in SLOTS]
    offsets: list[list[int]] = [[0] for _ in SLOTS]
    for line in text.splitlines():
        words, at = line.split(), 0
        for slot, (kind, _) in enumerate(kinds):
            end = at + 1 + int(words[at])
            values[slot].extend(map(kind, words[at + 1 : end]))
            offsets[slot].append(len(values[slot]))
            at = end
    return [
        (np.array(values[slot], dtype), np.array(offsets[slot], np.int64))
        for slot, (_, dtype) in enumerate(kinds)
    ]


def _lines(count: int) -> Iterable[str]:
    random = np.random.default_rng(1)
    floats = random.random((count, NUM_FLOATS)).tolist()
    ids = random.integers(0, 1_000_000, (count, NUM_IDS)).tolist()
    for measures, words in zip(floats, ids, strict=True):
        dense = " ".join(map(repr, measures))
        sparse = " ".join(f"1 {word}" for word in words)
        yield f"1 {words[0] % 2} {NUM_FLOATS} {dense} {sparse}\n"


def _parse(text: bytes) -> None:
    layout = Layout(tuple(SLOTS))
    parser = Parser(
        layout,
        Scratch(layout),
        BadLines("raise", Path(), Counter()),
        source="memory",
        file=("memory", 0),
    )
    rows = 0
    for begin in range(0, len(text), CHUNK_BYTES):
        rows += sum(len(block.rows) for block in parser.feed(text[begin : begin + CHUNK_BYTES]))
    assert rows == NUM_LINES


def _use(batches: Iterable[fleet.data.Batch]) -> None:
    size = sum(batch.size for batch in batches)
    assert size == NUM_LINES * NUM_FILES


def _rate(size: int, act: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    act()
    return size / (time.perf_counter() - begun) / 1e6


def _row(name: str, what: str, rounds: Rounds, work: _Work) -> dict[str, Any]:
    figure = rounds.figure(name)
    return {
        "case": name,
        "what": what,
        "MB_per_s": figure,
        "cpu_ms_per_MB": 1e3 * rounds.cpu_s(name),
        "samples_per_s": figure.median * 1e6 / work.line_bytes,
        "vs_plain": rounds.ratio(name, PLAIN),
        "vs_plain_cpu": rounds.cpu_ratio(name, PLAIN),
    }


if __name__ == "__main__":
    sys.exit(run_script(measure, description=__doc__ or "", budget_s=BUDGET_S))
