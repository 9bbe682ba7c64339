"""A training that says when its steps are: see ``recovery.py``.

Its notes go to a folder, a file for each worker, a JSON object a line; times are of
``time.perf_counter``, which all processes of a Linux machine share. Workers stop between two
steps while the folder has a file ``hold``, and end when it has a file ``end``.
"""

import argparse
import json
import threading
import time
from pathlib import Path
from typing import Any

import torch
from typing_extensions import override

import paramfleet as fleet

LONGEST_S = 1800.0
"""After that a worker ends, whatever its folder says."""


class Notes:
    """One process's file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, **note: Any) -> None:
        """Add a line."""
        self._file.write(json.dumps(note) + "\n")


class Ranking(torch.nn.Module):
    """Sums of an example's rows through a small network; returns logits [B]."""

    def __init__(self, num_ids: int, dim: int) -> None:
        super().__init__()
        self.embedding = fleet.nn.Embedding(
            num_ids, dim, name="ids", initializer=fleet.nn.uniform(-0.05, 0.05)
        )
        self.tower = torch.nn.Sequential(
            torch.nn.Linear(dim, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
        )

    @override
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.tower(self.embedding(ids).sum(1)).squeeze(1)
        return logits


def train(options: argparse.Namespace) -> None:
    """Be a worker: rows of all ids in turns, until the folder says that it is enough."""
    torch.set_num_threads(1)
    rank = fleet.worker_index()
    torch.manual_seed(rank)
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = not options.sync
    if strategy.a_sync:
        strategy.a_sync_configs = {"fresh_steps": 0}
    model = fleet.distributed_model(Ranking(options.ids, options.dim))
    optimizer = fleet.distributed_optimizer(
        torch.optim.Adagrad(model.parameters(), lr=0.01), strategy
    )
    fleet.init_worker()
    notes = Notes(options.folder / f"worker-{rank}")
    ids = torch.randperm(options.ids)
    hold, end = options.folder / "hold", options.folder / "end"
    pause = threading.Event()
    place, deadline = 0, time.perf_counter() + options.longest
    left = options.steps
    while left and not end.exists() and time.perf_counter() < deadline:
        if hold.exists():
            notes.write(event="held", at=time.perf_counter())
            pause.wait(0.02)
            continue
        began = time.perf_counter()
        batch = ids[place : place + options.batch].view(-1, options.slots)
        place = (place + options.batch) % (options.ids - options.batch + 1)
        labels = (batch.sum(1) % 2).float()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(batch), labels)
        optimizer.minimize(loss, examples=len(batch))
        notes.write(event="step", began=began, at=time.perf_counter(), loss=loss.item())
        left -= 1
    fleet.stop_worker()


def main() -> None:
    """Be what the environment says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="for the notes")
    parser.add_argument("--ids", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8192, help="ids of a step, of all slots")
    parser.add_argument("--longest", type=float, default=LONGEST_S, help="seconds of training")
    parser.add_argument("--sync", action="store_true", help="in sync mode; else in async")
    parser.add_argument("--steps", type=int, default=-1, help="as many; else until the end")
    options = parser.parse_args()
    fleet.init()
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
    else:
        train(options)


if __name__ == "__main__":
    main()
