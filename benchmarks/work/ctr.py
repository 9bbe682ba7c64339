"""Click-through rates, in the shape of Fleet's rank/dnn: ``python benchmarks/work/ctr.py``.

26 slots of rows of 9, 13 numbers, layers of 512, 256, 128 and 32, batches of 512, Adam.
It runs alone and as any role of a job:

    paramfleet launch --worker_num 2 benchmarks/work/ctr.py --mode async
"""

import argparse
import itertools
from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from typing_extensions import override

import paramfleet as fleet
import windows
from clicks import NUM_DENSE, NUM_IDS, NUM_SLOTS, Clicks, make_clicks

HELD_OUT_SEED = 1_000_003
NUM_BUCKETS = 1 << 14
"""Scores are counted in this many buckets for the AUC."""


class Batch(NamedTuple):
    """B examples."""

    ids: torch.Tensor
    """int64 [B, NUM_SLOTS]."""
    dense: torch.Tensor
    """float32 [B, NUM_DENSE]."""
    labels: torch.Tensor
    """float32 [B]."""


class Dnn(torch.nn.Module):
    """One embedding for all slots and a tower on top; returns logits [B]."""

    def __init__(self, *, dim: int, widths: tuple[int, ...], num_ids: int) -> None:
        super().__init__()
        self.embedding = fleet.nn.Embedding(
            num_ids, dim, name="ids", initializer=fleet.nn.uniform(-0.05, 0.05)
        )
        layers: list[torch.nn.Module] = []
        for num_in, num_out in itertools.pairwise((NUM_SLOTS * dim + NUM_DENSE, *widths)):
            layers += [torch.nn.Linear(num_in, num_out), torch.nn.ReLU()]
        self.tower = torch.nn.Sequential(*layers, torch.nn.Linear(widths[-1], 1))

    @override
    def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        rows = self.embedding(ids).flatten(1)
        logits: torch.Tensor = self.tower(torch.cat([rows, dense], dim=1)).squeeze(1)
        return logits


class ClickTask(windows.Task):
    """The model, this worker's examples, and those that nobody trains on."""

    learning_rates: ClassVar[Mapping[str, float]] = {"adam": 1e-3, "adagrad": 1e-2, "sgd": 0.1}

    def __init__(self, options: argparse.Namespace) -> None:
        self.batch_size: int = options.batch_size
        self._device = torch.device(options.device)
        dnn = Dnn(dim=options.dim, widths=options.widths, num_ids=options.ids)
        self.model: torch.nn.Module = dnn.to(self._device)
        size, rank = options.batch_size, fleet.worker_index()
        num = options.batches * size
        seed = (options.seed << 8) + rank
        self._batches = _batches(make_clicks(num, seed=seed, num_ids=options.ids), size)
        held_out = make_clicks(options.held_out, seed=HELD_OUT_SEED, num_ids=options.ids)
        self._held_out = _batches(held_out, 2048)[rank :: fleet.worker_num()]

    @override
    def batches(self) -> Iterator[Batch]:
        return itertools.cycle(self._batches)

    @override
    def loss(self, batch: Batch) -> torch.Tensor:
        dense, labels = (part.to(self._device) for part in (batch.dense, batch.labels))
        logits = self.model(batch.ids, dense)
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)

    @override
    def ids(self, batch: Batch) -> Mapping[str, torch.Tensor]:
        return {"embedding": batch.ids}

    @override
    @torch.no_grad()
    def quality(self) -> dict[str, float]:
        self.model.eval()
        counts = np.zeros((2, NUM_BUCKETS))
        for ids, dense, labels in self._held_out:
            scores = torch.sigmoid(self.model(ids, dense.to(self._device))).cpu().numpy()
            buckets = np.minimum((scores * NUM_BUCKETS).astype(np.int64), NUM_BUCKETS - 1)
            for label in (0, 1):
                mine = buckets[labels.numpy() == label]
                counts[label] += np.bincount(mine, minlength=NUM_BUCKETS)
        self.model.train()
        return {"auc": fleet.metrics.auc(counts[1], counts[0])}


def _batches(clicks: Clicks, size: int) -> list[Batch]:
    tensors = [torch.split(torch.from_numpy(part), size) for part in clicks]
    return [Batch(*parts) for parts in zip(*tensors, strict=True)]


def _widths(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("-")))


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = windows.command_line((__doc__ or "").partition("\n")[0])
    parser.add_argument("--ids", type=int, default=NUM_IDS, help="ids there are")
    parser.add_argument("--dim", type=int, default=9, help="floats of a row")
    parser.add_argument("--widths", type=_widths, default=_widths("512-256-128-32"))
    parser.add_argument("--batch_size", type=int, default=512)
    parser.add_argument("--batches", type=int, default=400, help="then they begin anew")
    parser.add_argument("--device", default="cpu", help="what the model computes on")
    parser.add_argument("--held_out", type=int, default=20_480, help="examples for the AUC")
    return parser.parse_args()


if __name__ == "__main__":
    windows.main(ClickTask, parse_arguments())
