"""Wide and deep on made-up clicks: the script of ``paramfleet demo``, and one to begin with.

    paramfleet demo --mode geo --servers 2 --workers 2
    python -m paramfleet_worker.app.beginning.demo.clicks    # in one process

A sample has a user, an item and a place, each an id, and two numbers. Hidden numbers of the ids
say who clicks on what, with some noise, so that no model can be always right.

The last line on standard output of worker 0 is one JSON object with the result.
"""

import json
import time
from dataclasses import dataclass

import click
import numpy as np
import torch
from typing_extensions import override

import paramfleet as fleet

NUM_IDS = (20_000, 2_000, 50)
"""Users, items, places."""

NUM_NUMBERS = 2
DIM = 8
NUM_TEST = 20_000
TEST_STREAM = 1 << 32
"""Number of the test samples: no training batch gets that far."""

LR = 0.1
K_STEPS = 20
BUCKETS = 1000
"""Of the histograms from which the AUC is computed over all workers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """Some samples."""

    ids: torch.Tensor
    """int64 ``[B, 3]``; no id is in two columns."""

    numbers: torch.Tensor
    """float32 ``[B, 2]``."""

    clicks: torch.Tensor
    """float32 ``[B]``, 0 or 1."""


class WideDeep(torch.nn.Module):
    """A weight for each id, and a network on the vectors of all ids."""

    def __init__(self) -> None:
        super().__init__()
        zero = fleet.nn.constant(0)
        self.wide = fleet.nn.EmbeddingBag(0, 1, mode="sum", initializer=zero, name="wide")
        self.deep = fleet.nn.Embedding(0, DIM, name="deep")
        self.tower = torch.nn.Sequential(
            torch.nn.Linear(len(NUM_IDS) * DIM + NUM_NUMBERS, 32),
            torch.nn.ReLU(),
            torch.nn.Linear(32, 1),
        )

    @override
    def forward(self, ids: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return logits float32 ``[B]`` of ids ``[B, 3]`` and numbers ``[B, 2]``."""
        deep = torch.cat([self.deep(ids).flatten(1), numbers], dim=1)
        logits: torch.Tensor = (self.wide(ids) + self.tower(deep)).squeeze(1)
        return logits


def made_up(stream: int, size: int, *, seed: int) -> Samples:
    """Return samples, the same for the same arguments."""
    hidden = np.random.default_rng(seed).normal(size=sum(NUM_IDS))
    random = np.random.default_rng((seed, stream))
    firsts = np.cumsum((0, *NUM_IDS[:-1]))
    shares = random.random((size, len(NUM_IDS))) ** 3  # some ids are frequent, most are rare
    ids = firsts + (shares * NUM_IDS).astype(np.int64)
    numbers = random.normal(size=(size, NUM_NUMBERS)).astype(np.float32)
    score = hidden[ids].sum(axis=1) + numbers.sum(axis=1) + random.normal(size=size)
    return Samples(
        ids=torch.from_numpy(ids),
        numbers=torch.from_numpy(numbers),
        clicks=torch.from_numpy((score > 0.5).astype(np.float32)),
    )


def batch_of(step: int, size: int, *, seed: int, lockstep: bool) -> Samples:
    """Return this worker's batch of a step.

    In lockstep the workers share the job's batch of ``size`` samples; otherwise each has as
    many of its own.
    """
    rank, num_workers = fleet.worker_index(), fleet.worker_num()
    if not lockstep:
        return made_up(step * num_workers + rank, size, seed=seed)
    whole = made_up(step, size, seed=seed)
    share = slice(rank, None, num_workers)
    return Samples(
        ids=whole.ids[share], numbers=whole.numbers[share], clicks=whole.clicks[share]
    )


def auc_of(model: torch.nn.Module, *, seed: int) -> float:
    """Return the AUC of samples that nobody has trained; all workers call it."""
    test = made_up(TEST_STREAM, NUM_TEST, seed=seed)
    with torch.no_grad():
        scores = model(test.ids, test.numbers).sigmoid()
    buckets = (scores * (BUCKETS - 1)).long()
    counts = [
        torch.bincount(buckets[test.clicks == label], minlength=BUCKETS).numpy()
        for label in (1, 0)
    ]
    return float(fleet.metrics.auc(*counts))


def strategy_of(mode: str) -> fleet.DistributedStrategy:
    """Return the strategy of a mode."""
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = mode != "sync"
    if mode == "geo":
        strategy.a_sync_configs = {"k_steps": K_STEPS}
    return strategy


@click.command(context_settings={"show_default": True})
@click.option("--mode", type=click.Choice(["sync", "async", "geo"]), default="geo")
@click.option("--steps", type=click.IntRange(min=1), default=300)
@click.option("--batch_size", type=click.IntRange(min=1), default=256)
@click.option("--seed", type=click.IntRange(min=0), default=0)
def main(mode: str, steps: int, batch_size: int, seed: int) -> None:
    """Train wide and deep on made-up clicks."""
    fleet.init()
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return

    torch.set_num_threads(1)  # the matrices are small: threads would only wait for each other
    torch.manual_seed(seed)
    model = fleet.distributed_model(WideDeep())
    optimizer = fleet.distributed_optimizer(
        torch.optim.Adagrad(model.parameters(), lr=LR), strategy_of(mode)
    )
    criterion = torch.nn.BCEWithLogitsLoss()
    fleet.init_worker()
    started = time.perf_counter()
    for step in range(1, steps + 1):
        batch = batch_of(step, batch_size, seed=seed, lockstep=mode == "sync")
        loss = criterion(model(batch.ids, batch.numbers), batch.clicks)
        optimizer.minimize(loss)
        fleet.report(loss=loss.item(), examples=len(batch.clicks))
        if step % 100 == 0:
            click.echo(f"step {step} loss {loss.item():.4f}")
        if fleet.should_stop():
            break
    seconds = time.perf_counter() - started
    fleet.finish_training()
    auc = auc_of(model, seed=seed)
    result = {
        "model": "wide_deep",
        "mode": mode if fleet.server_num() else "local",
        "servers": fleet.server_num(),
        "workers": fleet.worker_num(),
        "steps": steps,
        "test_auc": round(auc, 4),
        "seconds": round(seconds, 2),
    }
    fleet.stop_worker()
    if fleet.is_first_worker():
        click.echo(json.dumps(result))


if __name__ == "__main__":
    main()
