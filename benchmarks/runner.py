"""Examples a second of ``paramfleet train`` by reader: ``python benchmarks/runner.py``.

Beside loops that somebody wrote in plain torch for the same network and rows. See README.md
beside this file.
"""

import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from typing_extensions import override

import paramfleet as fleet
from harness import Suite, run_script, suite_of
from paramfleet.runner import tower
from paramfleet.runner.config.configuration import read_config
from paramfleet.runner.folders import load_model_class
from paramfleet.runner.training import train
from paramfleet_shared.system.clock import SystemClock
from rounds import Rounds, least_rounds

if TYPE_CHECKING:
    from conditions import Headline

BUDGET_S = 30.0

NUM_ROWS = 8192
BATCH = 512
NUM_IDS, NUM_FLOATS, DIM = 26, 13, 9
NUM_VECTORS = 1_000_001
SIZES = (512, 256, 128, 32)
RATE = 0.001

CONFIG = Path(__file__).parents[1] / "models" / "rank" / "dnn" / "config.yaml"

IN_MEMORY, PARSED = "torch, tensors in memory", "torch, slot text in Python"
CASES: dict[str, tuple[str, dict[str, str]]] = {
    IN_MEMORY: ("a loop over batches that are there: nothing is read", {}),
    PARSED: ("a loop that splits each line and makes tensors", {}),
    "RecDataset": ("the reader of rank/dnn, on slot text", {}),
    "QueueDataset": ("MultiSlot text", {"pipe_command": "cat"}),
    "QueueDataset, pipe": (
        "slot text through pipe_reader.py",
        {"reader_type": "QueueDataset", "pipe_command": "python pipe_reader.py"},
    ),
    "InmemoryDataset": ("MultiSlot text, loaded and shuffled", {"pipe_command": "cat"}),
}
"""What each does, and the runner's keys beside ``reader_type``."""

METHOD = (
    f"rank/dnn (26 ids of width {DIM}, 13 numbers, {SIZES}, Adam) on {NUM_ROWS} made-up rows "
    f"in batches of {BATCH}, one process, one torch thread, metrics off; a run is one epoch, "
    "from the first file's opening to the last step. The loops step a sparse embedding with "
    "SparseAdam. A round runs every case once; a ratio is of one round, '_cpu' of processor "
    "time. All cases may use all cores: some read in a thread or a process beside."
)

Row = tuple[int, list[int], list[float]]
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def measure(*, budget_s: float = BUDGET_S) -> Suite:
    """Measure for about ``budget_s`` seconds."""
    with tempfile.TemporaryDirectory(prefix="runner-") as folder:
        cases = _cases(Path(folder))
        for turn in cases.values():
            turn()  # kernels are compiled, pages are in memory
        rounds = Rounds(list(CASES), budget_s=budget_s, least=least_rounds(budget_s))
        rounds.run(cases)
    headlines: dict[str, Headline | None] = {}
    for name in ("RecDataset", "QueueDataset", "InmemoryDataset"):
        headline = f"train_{name.lower()}_vs_torch_loop"
        headlines[headline] = rounds.headline(name, PARSED)
        headlines[f"{headline}_cpu"] = rounds.cpu_headline(name, PARSED)
    return suite_of(
        "runner",
        rows=[
            {
                "case": name,
                "what": what,
                "examples_per_s": rounds.figure(name),
                "cpu_us_per_example": 1e6 * rounds.cpu_s(name),
                "vs_parsing_loop": rounds.ratio(name, PARSED),
                "vs_parsing_loop_cpu": rounds.cpu_ratio(name, PARSED),
                "vs_memory_loop": rounds.ratio(name, IN_MEMORY),
            }
            for name, (what, _) in CASES.items()
        ],
        headlines=headlines,
        method=METHOD,
        turns={"runner": rounds.turns},
    )


def _cases(folder: Path) -> dict[str, Callable[[], float]]:
    """Write the files; return a turn of each case, whose figure is its examples a second."""
    rows = list(_rows())
    slots, multi = folder / "slots.txt", folder / "multi.txt"
    slots.write_text("".join(map(_slot_text, rows)), encoding="utf-8")
    multi.write_text("".join(map(_multi_slot_text, rows)), encoding="utf-8")
    held = list(_batches(iter(rows)))
    turns: dict[str, Callable[[], float]] = {
        IN_MEMORY: lambda: _loop(lambda: held),
        PARSED: lambda: _loop(lambda: _batches(_parsed(slots))),
    }
    for name, (_, keys) in CASES.items():
        if name not in turns:
            file = multi if keys.get("pipe_command") == "cat" else slots
            own = {"reader_type": name, "train_data_dir": str(file), **keys}
            turns[name] = partial(_train, own)
    return turns


def _train(keys: dict[str, str]) -> float:
    """Train by the runner, in this process."""
    shared = {
        "test_data_dir": "", "model_save_path": "", "print_interval": "0", "use_auc": "false",
        "epochs": "1", "train_batch_size": str(BATCH),
    }  # fmt: skip
    options = [f"runner.{key}={value}" for key, value in {**shared, **keys}.items()]
    raw = read_config(CONFIG, options)
    fleet.init(fleet.PaddleCloudRoleMaker(environment={}))
    cls = load_model_class(raw)
    return train(cls(raw.read_as(cls.parameters)), SystemClock()).examples_per_s


class Plain(torch.nn.Module):
    """rank/dnn as somebody writes it who has torch alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(NUM_VECTORS, DIM, sparse=True)
        self.deep = tower(NUM_IDS * DIM + NUM_FLOATS, *SIZES)
        self.out = torch.nn.Linear(SIZES[-1], 1)

    @override
    def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """Return one logit an example, float32 [B]."""
        inputs = torch.cat([self.embedding(ids).flatten(1), dense], dim=1)
        logits: torch.Tensor = self.out(self.deep(inputs)).squeeze(1)
        return logits


def _loop(batches: Callable[[], Iterable[Tensors]]) -> float:
    """Train by a plain loop."""
    torch.set_num_threads(1)
    net = Plain()
    dense = [*net.deep.parameters(), *net.out.parameters()]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Adam(dense, lr=RATE),
        torch.optim.SparseAdam(net.embedding.parameters(), lr=RATE),
    ]
    begun, count = time.perf_counter(), 0
    for label, ids, numbers in batches():
        loss = binary_cross_entropy_with_logits(net(ids, numbers), label)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        for optimizer in optimizers:
            optimizer.step()
        count += len(label)
    assert count == NUM_ROWS
    return count / (time.perf_counter() - begun)


def _parsed(file: Path) -> Iterator[Row]:
    """Yield the rows of slot text, by Python's own means."""
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            label, ids, numbers = 0, [0] * NUM_IDS, []
            for word in line.split():
                slot, value = word.split(":")
                if slot == "click":
                    label = int(value)
                elif slot == "dense_feature":
                    numbers.append(float(value))
                else:
                    ids[int(slot) - 1] = int(value)
            yield label, ids, numbers


def _batches(rows: Iterator[Row]) -> Iterator[Tensors]:
    while chosen := list(itertools.islice(rows, BATCH)):
        labels, ids, numbers = zip(*chosen, strict=True)
        yield torch.tensor(labels).float(), torch.tensor(ids), torch.tensor(numbers)


def _rows() -> Iterator[Row]:
    random = np.random.default_rng(1)
    ids = random.integers(0, NUM_VECTORS, (NUM_ROWS, NUM_IDS)).tolist()
    numbers = random.random((NUM_ROWS, NUM_FLOATS)).round(6).tolist()
    for words, dense in zip(ids, numbers, strict=True):
        yield words[0] % 2, words, dense


def _slot_text(row: Row) -> str:
    label, ids, numbers = row
    words = [f"click:{label}", *(f"dense_feature:{number}" for number in numbers)]
    words += [f"{slot}:{value}" for slot, value in enumerate(ids, start=1)]
    return " ".join(words) + "\n"


def _multi_slot_text(row: Row) -> str:
    label, ids, numbers = row
    words = [f"1 {label}", *(f"1 {value}" for value in ids), f"{NUM_FLOATS}"]
    return " ".join([*words, *map(str, numbers)]) + "\n"


if __name__ == "__main__":
    sys.exit(run_script(measure, description=__doc__ or "", budget_s=BUDGET_S))
