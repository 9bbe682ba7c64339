"""The example's wide and deep model on the flights: ``python benchmarks/work/wide_deep.py``.

Model, data and score are those of ``examples/wide_and_deep``; the optimizer is Adagrad, as
there. Batches are cut before the first window. It runs alone and as any role of a job:

    paramfleet launch --worker_num 2 benchmarks/work/wide_deep.py --mode geo
"""

import argparse
import itertools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import torch
from typing_extensions import override

import paramfleet as fleet
import windows
from paramfleet_shared.settings.config import read_environment

sys.path.append(str(Path(__file__).parents[2] / "examples" / "wide_and_deep"))

from data import load_dataset
from evaluation import evaluate
from model import WideDeep
from records import Batch, BatchPlan


class FlightsTask(windows.Task):
    """The model and this worker's share of the flights."""

    learning_rates: ClassVar[Mapping[str, float]] = {"adagrad": 0.05, "adam": 0.002, "sgd": 2.0}

    def __init__(self, options: argparse.Namespace) -> None:
        cache = Path(read_environment().get("XDG_CACHE_HOME", "~/.cache")).expanduser()
        flights = load_dataset("flights", data_dir=None, cache_dir=cache / "paramfleet")
        self.batch_size: int = options.batch_size
        self.model: torch.nn.Module = WideDeep(
            num_deep_fields=flights.train.deep_ids.shape[1],
            num_dense=flights.train.dense.shape[1],
            seed=options.seed,
        )
        plan = BatchPlan(
            batch_size=self.batch_size, seed=options.seed, num_workers=fleet.worker_num()
        )
        rows = plan.rows(len(flights.train), epoch=0, rank=fleet.worker_index())
        self._batches = [flights.train.batch(each) for each in rows]
        self._test = flights.test

    @override
    def batches(self) -> Iterator[Batch]:
        return itertools.cycle(self._batches)

    @override
    def loss(self, batch: Batch) -> torch.Tensor:
        logits = self.model(batch.wide_ids, batch.deep_ids, batch.dense)
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)

    @override
    def quality(self) -> dict[str, float]:
        scores = evaluate(self.model, self._test)
        self.model.train()
        return {"auc": scores.auc}


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = windows.command_line((__doc__ or "").partition("\n")[0])
    parser.add_argument("--batch_size", type=int, default=512)
    return parser.parse_args()


if __name__ == "__main__":
    windows.main(FlightsTask, parse_arguments())
