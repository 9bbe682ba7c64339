"""A worker that trains by passes on a table with rows on disk: see ``cold_training.py``."""

import argparse
import json
import subprocess
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

import paramfleet as fleet
from busy import busy_s, written_bytes
from paramfleet.runner.online.data.coming_rows import LATE_SHARE
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.system.processes.own_modules import module_command

FIELDS = 26
EXPONENT = 1.05
CREATED = 1 << 15
"""Rows that are made by one step."""
PUBLISHED_S = 3.0
"""After so long the coordinator has the pserver's last counts."""


class Ranking(torch.nn.Module):
    """The rows of 26 ids through three layers, as ``models/rank/dnn``; returns logits [B]."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.ids = fleet.nn.Embedding(0, dim, name="ids", negative_ids=True)
        layers: list[torch.nn.Module] = []
        sizes = (dim * FIELDS, 400, 400, 400)
        for before, behind in pairwise(sizes):
            layers += [torch.nn.Linear(before, behind), torch.nn.ReLU()]
        self.layers = torch.nn.Sequential(*layers, torch.nn.Linear(sizes[-1], 1))

    @override
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(self.ids(ids).flatten(1)).squeeze(1)
        return logits


class Draws:
    """Passes of batches of ids [samples, 26], by Zipf's law over all rows."""

    def __init__(self, num_rows: int, samples: int) -> None:
        self._below = np.cumsum(np.arange(1, num_rows + 1, dtype=np.float64) ** -EXPONENT)
        self._rng = np.random.default_rng(1)
        self._samples = samples

    def a_pass(self, num_steps: int) -> list[torch.Tensor]:
        """Return the batches of a pass."""
        draws = self._rng.random((num_steps, self._samples, FIELDS)) * self._below[-1]
        return list(torch.from_numpy(as_ids(np.searchsorted(self._below, draws))))


def as_ids(ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return an id of each rank, as ids are: sparse."""
    return (ranks.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)


def cold_reads() -> int:
    """Return how many rows the pserver has read from disk, while nothing is asked of it."""
    time.sleep(PUBLISHED_S)  # noqa: TID251 - a benchmark has no clock of the project
    asked = [*module_command("paramfleet_worker", "tables"), "--json"]
    asked.append(f"--job={read_environment()['PARAMFLEET_JOB']}")
    answer = subprocess.run(tied(asked), capture_output=True, check=True, timeout=60)
    return sum(each.get("cold_read", 0) for each in json.loads(answer.stdout))


def train(options: argparse.Namespace) -> None:
    """Make all rows, then train passes, and write how long the measured ones took."""
    torch.manual_seed(0)
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    model = fleet.distributed_model(Ranking(options.dim))
    optimizer = fleet.distributed_optimizer(
        torch.optim.Adagrad(model.parameters(), lr=0.01), strategy
    )
    fleet.init_worker()
    for first in reversed(range(0, options.rows, CREATED)):  # those used least first
        ranks = np.arange(first, min(options.rows, first + CREATED))
        optimizer.minimize(model.ids(torch.from_numpy(as_ids(ranks))).sum() * 0.0)
    draws = Draws(options.rows, options.samples)
    passes = [draws.a_pass(options.steps) for _ in range(options.warm + options.passes)]
    late = int(options.steps * (1 - LATE_SHARE))
    reads, busy, began = 0, busy_s(), time.perf_counter()
    written = 0
    for number, batches in enumerate(passes):
        if number == options.warm:
            reads = cold_reads() if options.counts else 0
            busy, written = busy_s(), written_bytes(options.folder)
            began = time.perf_counter()
        coming = None
        for step, ids in enumerate(fleet.prefetch(batches, model, depth=options.depth)):
            if step == late and options.known and number + 1 < len(passes):
                coming = fleet.prefetch_rows(model.ids, np.unique(np.stack(passes[number + 1])))
            labels = (ids[:, 0] % 2).float()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(ids), labels)
            optimizer.minimize(loss)
        if coming is not None:
            coming.wait(60.0)
    seconds, busy = time.perf_counter() - began, busy_s() - busy
    found = {
        "seconds": seconds,
        "busy": busy,
        "written": written_bytes(options.folder) - written,
        "reads": cold_reads() - reads if options.counts else 0,
    }
    (options.folder / "found.json").write_text(json.dumps(found), encoding="utf-8")
    fleet.stop_worker()


def main() -> None:
    """Be a pserver, or the worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--dim", type=int, required=True)
    parser.add_argument("--samples", type=int, required=True, help="of a step")
    parser.add_argument("--steps", type=int, required=True, help="of a pass")
    parser.add_argument("--warm", type=int, required=True, help="passes before those measured")
    parser.add_argument("--passes", type=int, required=True)
    parser.add_argument("--counts", action="store_true", help="count the rows read from disk")
    parser.add_argument("--depth", type=int, default=2, help="batches to be ahead by")
    parser.add_argument("--known", action="store_true", help="ask for a pass's rows before it")
    options = parser.parse_args()
    fleet.init()
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
    else:
        train(options)


if __name__ == "__main__":
    main()
