"""A small model of a table with categories: ``python benchmarks/work/tabular.py``.

8 categorical fields with rows of 8, 6 numbers, a layer of 64, batches of 128: a step is so
small that what a mode costs beside the arithmetic shows. The data is the 1994 census where
``--data_dir`` holds ``adult.data.gz``, else numbers of its shape. It runs alone and as any
role of a job:

    paramfleet launch --worker_num 2 --server_num 2 benchmarks/work/tabular.py --mode sync
"""

import argparse
import csv
import gzip
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from typing_extensions import override

import paramfleet as fleet
import windows

FIELDS = {1: 9, 3: 16, 5: 7, 6: 15, 7: 6, 8: 5, 9: 2, 13: 42}
"""Columns of the census with categories, and how many each has."""

NUMBERS = (0, 2, 4, 10, 11, 12)
"""Its columns with numbers."""

DIM = 8
FIELD_IDS = 64
"""Ids of a field, more than any has categories."""

_MADE_UP = 26_112
_HELD_OUT = 4_096
_HIDDEN = 64


class Batch(NamedTuple):
    """B people."""

    ids: torch.Tensor
    """int64 [B, fields]; each field has ids of its own."""
    numbers: torch.Tensor
    """float32 [B, numbers], standardised."""
    labels: torch.Tensor
    """float32 [B]."""


class Tabular(torch.nn.Module):
    """Rows of the categories and the numbers into one hidden layer; returns logits [B].

    Args:
        tables: ``one`` for all fields, or one for ``each``.
    """

    def __init__(self, tables: str) -> None:
        super().__init__()
        start = fleet.nn.normal(std=0.05)
        names = ["fields"] if tables == "one" else [f"field_{column}" for column in FIELDS]
        self.embeddings = torch.nn.ModuleList(
            fleet.nn.Embedding(FIELD_IDS, DIM, name=name, initializer=start) for name in names
        )
        self.network = torch.nn.Sequential(
            torch.nn.Linear(len(FIELDS) * DIM + len(NUMBERS), _HIDDEN),
            torch.nn.ReLU(),
            torch.nn.Linear(_HIDDEN, 1),
        )

    @override
    def forward(self, ids: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        if len(self.embeddings) == 1:
            rows = [self.embeddings[0](ids).flatten(1)]
        else:
            rows = [table(ids[:, field]) for field, table in enumerate(self.embeddings)]
        logits: torch.Tensor = self.network(torch.cat([*rows, numbers], dim=1)).squeeze(1)
        return logits


class TabularTask(windows.Task):
    """The model and this worker's share of the people."""

    learning_rates: ClassVar[Mapping[str, float]] = {"adam": 2e-3, "sgd": 0.1, "adagrad": 0.05}

    def __init__(self, options: argparse.Namespace) -> None:
        self.batch_size: int = options.batch_size
        self.model: torch.nn.Module = Tabular(options.tables)
        people = _census(options.data_dir) if options.data_dir else _made_up()
        train = [part[:-_HELD_OUT] for part in people]
        self._held_out = Batch(*(part[-_HELD_OUT:] for part in people))
        mine = [part[fleet.worker_index() :: fleet.worker_num()] for part in train]
        parts = [torch.split(part, self.batch_size) for part in mine]
        self._batches = [Batch(*each) for each in zip(*parts, strict=True)][:-1]

    @override
    def batches(self) -> Iterator[Batch]:
        return itertools.cycle(self._batches)

    @override
    def loss(self, batch: Batch) -> torch.Tensor:
        logits = self.model(batch.ids, batch.numbers)
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)

    @override
    @torch.no_grad()
    def quality(self) -> dict[str, float]:
        self.model.eval()
        logits = self.model(self._held_out.ids, self._held_out.numbers)
        self.model.train()
        right = (logits > 0) == (self._held_out.labels > 0)
        return {"accuracy": float(right.float().mean())}

    def num_different(self) -> float:
        """Return how many different ids a batch has, on average."""
        return float(np.mean([len(torch.unique(batch.ids)) for batch in self._batches]))


def _census(data_dir: Path) -> Batch:
    with gzip.open(data_dir / "adult.data.gz", "rt", encoding="ascii") as file:
        lines = [line for line in csv.reader(file, skipinitialspace=True) if line]
    columns = list(zip(*lines, strict=True))
    codes = [np.unique(columns[column], return_inverse=True)[1] for column in FIELDS]
    numbers = np.array([columns[column] for column in NUMBERS], np.float64).T
    labels = np.array([income.startswith(">") for income in columns[-1]])
    return _batch(np.stack(codes, axis=1), numbers, labels)


def _made_up() -> Batch:
    rng = np.random.default_rng(1994)
    codes = [
        np.minimum(rng.geometric(min(0.6, 3 / size), _MADE_UP), size) - 1
        for size in FIELDS.values()
    ]
    numbers = rng.standard_normal((_MADE_UP, len(NUMBERS)))
    slopes = [rng.normal(0.0, 1.0, size) for size in FIELDS.values()]
    scores = sum(slope[code] for slope, code in zip(slopes, codes, strict=True))
    labels = rng.random(_MADE_UP) < 1 / (1 + np.exp(1 - scores - numbers[:, 0]))
    return _batch(np.stack(codes, axis=1), numbers, labels)


def _batch(codes: np.ndarray, numbers: np.ndarray, labels: np.ndarray) -> Batch:
    ids = codes.astype(np.int64) + FIELD_IDS * np.arange(len(FIELDS))
    standard = (numbers - numbers.mean(0)) / numbers.std(0)
    return Batch(
        torch.from_numpy(ids),
        torch.from_numpy(standard.astype(np.float32)),
        torch.from_numpy(labels.astype(np.float32)),
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the workload's options."""
    parser.add_argument("--tables", choices=("one", "each"), default="each")
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--data_dir", type=Path, help="folder of adult.data.gz")


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = windows.command_line((__doc__ or "").partition("\n")[0])
    add_options(parser)
    return parser.parse_args()


if __name__ == "__main__":
    windows.main(TabularTask, parse_arguments())
