"""A training that says when its steps and its pservers' starts are: see ``recovery.py``.

Its notes go to a folder, a file for each place in the job, a JSON object a line; times are of
``time.perf_counter``, which all processes of a Linux machine share. Workers stop between two
steps while the folder has a file ``hold``, and end when it has a file ``end``.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

BEGAN = time.perf_counter()  # before imports: they are a part of what is measured

import argparse  # noqa: E402
import logging  # noqa: E402
import threading  # noqa: E402

import torch  # noqa: E402
from typing_extensions import override  # noqa: E402

import paramfleet as fleet  # noqa: E402

LONGEST_S = 1800.0
"""After that a worker ends, whatever its folder says."""


class Notes:
    """One process's file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, **note: Any) -> None:
        """Add a line."""
        self._file.write(json.dumps(note) + "\n")

    def write_event(self, name: str, **facts: Any) -> None:
        """Add that something is so now, and the process's processor time until now."""
        self.write(event=name, at=time.perf_counter(), cpu_s=time.process_time(), **facts)


class EventNotes(logging.Handler):
    """Notes when a pserver has logged an event, with its fields of numbers."""

    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self._notes = notes

    @override
    def emit(self, record: logging.LogRecord) -> None:
        known = ("seconds", "bytes_since_snapshot")
        facts = {name: getattr(record, name) for name in known if hasattr(record, name)}
        self._notes.write_event(record.getMessage(), **facts)


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


def serve(folder: Path, index: str) -> None:
    """Be a pserver, and note its start."""
    notes = Notes(folder / f"pserver-{index}")
    notes.write(event="began", at=BEGAN, pid=os.getpid())
    notes.write_event("imported")
    for name in ("paramfleet_pserver.app", "paramfleet_shared.discovery.session"):
        logging.getLogger(name).addHandler(EventNotes(notes))
    fleet.init_server()
    fleet.run_server()


def train(options: argparse.Namespace) -> None:
    """Be a worker: rows of all ids in turns, until the folder says that it is enough."""
    torch.set_num_threads(1)
    rank = fleet.worker_index()
    torch.manual_seed(rank)
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
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
    place, deadline = 0, time.perf_counter() + LONGEST_S
    while not end.exists() and time.perf_counter() < deadline:
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
        notes.write(event="step", began=began, at=time.perf_counter())
    fleet.stop_worker()


def main() -> None:
    """Be what the environment says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="for the notes")
    parser.add_argument("--ids", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8192, help="ids of a step, of all slots")
    options = parser.parse_args()
    fleet.init()
    if fleet.is_server():
        serve(options.folder, str(fleet.server_index()))
    else:
        train(options)


if __name__ == "__main__":
    main()
