"""A stream of made-up days whose ids drift, trained day by day: see ``days.py``.

Each slot's ids come, are frequent, get rarer and go: on each day a part of them is new. What
an example's label depends on is a number of each id, made from a hash. Each worker takes its
part of every batch; each day is predicted before it is trained. Notes are JSON, a line a day.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

import paramfleet as fleet

SLOTS = 10
DIM = 8
BATCH = 256
PER_SLOT = 1 << 40
"""Ids of a slot are from its number times this on."""

_STEEP = 4.0
"""Of how frequent an id is by its age: most are young."""

_OLD, _HOW_OLD = 0.02, 4
"""The part of an example's ids that is of any age up to so many times the others' greatest."""


class Days:
    """The stream. The same for all workers.

    Args:
        samples: Of a day.
        alive: Ids of a slot that are in use at once.
        new: The part of them that is new each day.
    """

    def __init__(self, samples: int, alive: int, new: float) -> None:
        self._samples = samples
        self._alive = alive
        self._new = new

    def batches(self, day: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Yield the day's batches: ids [B, SLOTS] and labels [B]."""
        random = np.random.default_rng(day)
        for start in range(0, self._samples, BATCH):
            newest = _HOW_OLD * self._alive + self._new * self._alive * (
                day + start / self._samples
            )
            age = self._alive * random.random((BATCH, SLOTS)) ** _STEEP
            is_old = random.random((BATCH, SLOTS)) < _OLD
            age[is_old] = _HOW_OLD * self._alive * random.random(int(is_old.sum()))
            ids = np.floor(newest - age).astype(np.int64)
            ids += PER_SLOT * np.arange(SLOTS)
            logits = effect_of(ids).sum(1) - 1.0
            labels = random.random(BATCH) < 1 / (1 + np.exp(-logits))
            yield ids, labels.astype(np.float32)


def effect_of(ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return what each id adds to the logit: about normal, made from the id."""
    keys = ids.astype(np.uint64)
    total = np.zeros(ids.shape)
    for _ in range(4):
        keys = (keys ^ (keys >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
        total += (keys >> np.uint64(11)).astype(np.float64) / 2**53 - 0.5
    return total


def auc_of(labels: NDArray[np.float32], scores: NDArray[np.float32]) -> float:
    """Return the area under the ROC curve."""
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(order))
    ranks[order] = np.arange(1, len(order) + 1)
    positive = labels > 0
    num = int(positive.sum())
    above = ranks[positive].sum() - num * (num + 1) / 2
    return float(above / (num * (len(labels) - num)))


class WideDeep(torch.nn.Module):
    """A weight of each id, and a small network over rows of all slots; logits [B]."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = fleet.nn.Embedding(0, 1, name="wide")
        self.deep = fleet.nn.Embedding(
            0, DIM, name="deep", initializer=fleet.nn.uniform(-0.05, 0.05)
        )
        self.tower = torch.nn.Sequential(
            torch.nn.Linear(SLOTS * DIM, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        )

    @override
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        deep = self.tower(self.deep(ids).flatten(1)).squeeze(1)
        logits: torch.Tensor = deep + self.wide(ids).sum((1, 2))
        return logits


def train(options: argparse.Namespace) -> None:
    """Be a worker.

    Raises:
        AssertionError: if what goes isn't what the dry run said.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, size = fleet.worker_index(), fleet.worker_num()
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = options.mode == "async"
    strategy.eviction_configs = json.loads(options.evict)
    model = fleet.distributed_model(WideDeep())
    optimizer = fleet.distributed_optimizer(
        torch.optim.Adagrad(model.parameters(), lr=0.2), strategy
    )
    fleet.init_worker()
    days = Days(options.samples, options.alive, options.new)
    notes = (options.folder / f"worker-{rank}").open("a", encoding="utf-8", buffering=1)
    mine = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
    loss_of = torch.nn.functional.binary_cross_entropy_with_logits
    for day in range(options.days):
        scores, truths = [], []
        with torch.no_grad():
            for ids, labels in days.batches(day):
                scores.append(model(torch.from_numpy(ids[mine])).numpy())
                truths.append(labels[mine])
        for ids, labels in days.batches(day):
            optimizer.minimize(
                loss_of(model(torch.from_numpy(ids[mine])), torch.from_numpy(labels[mine]))
            )
        would = gone = {}
        if strategy.eviction_configs and not strategy.a_sync:
            would = fleet.shrink(dry_run=True)
            gone = fleet.shrink()
        auc = auc_of(np.concatenate(truths), np.concatenate(scores))
        note = {"event": "day", "day": day, "auc": auc, "would": would, "gone": gone}
        notes.write(json.dumps(note) + "\n")
    fleet.finish_training()
    fleet.stop_worker()


def main() -> None:
    """Be a pserver or a worker, as the environment says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--mode", default="sync")
    parser.add_argument("--days", type=int, required=True)
    parser.add_argument("--samples", type=int, required=True, help="of a day")
    parser.add_argument("--alive", type=int, required=True, help="ids of a slot at once")
    parser.add_argument("--new", type=float, required=True, help="part that is new each day")
    parser.add_argument("--evict", default="{}", help="JSON")
    options = parser.parse_args()
    fleet.init()
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
    else:
        train(options)


if __name__ == "__main__":
    main()
