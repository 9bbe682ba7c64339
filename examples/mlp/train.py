"""Train a small network on generated data: the shortest whole program.

    python examples/mlp/train.py
    paramfleet launch --server_num 1 --worker_num 2 examples/mlp/train.py --mode sync
    paramfleet launch --nproc_per_node 2 examples/mlp/train.py --mode collective

An example is 32 random numbers and the id of one of 20 groups. Its class is told by a
curve of two sums of the numbers and by a secret of the group, so that the network and
the embedding both have something to learn.

The last line on standard output of worker 0 is one JSON object with the result.
"""

import json
import time

import click
import numpy as np
import torch
from typing_extensions import override

import paramfleet as fleet

NUM_INPUTS = 32
NUM_GROUPS = 20
GROUP_DIM = 4
NUM_TEST = 4096
TEST_STREAM = 1 << 32
"""Number of the test batch: no training batch gets that far."""


class Mlp(torch.nn.Module):
    """Two hidden layers on the numbers and the vector of the group.

    Args:
        served: Whether the vectors are rows of a table; else they are dense parameters.
        seed: Of the rows.
    """

    def __init__(self, *, served: bool, seed: int) -> None:
        super().__init__()
        self.group: torch.nn.Module
        if served:
            self.group = fleet.nn.Embedding(NUM_GROUPS, GROUP_DIM, name="group", seed=seed)
        else:
            self.group = torch.nn.Embedding(NUM_GROUPS, GROUP_DIM)
        self.network = torch.nn.Sequential(
            torch.nn.Linear(NUM_INPUTS + GROUP_DIM, 64),
            torch.nn.ReLU(),
            torch.nn.Linear(64, 64),
            torch.nn.ReLU(),
            torch.nn.Linear(64, 2),
        )

    @override
    def forward(self, numbers: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        """Return logits float32 ``[B, 2]`` of numbers ``[B, 32]`` and groups int64 ``[B]``."""
        inputs = torch.cat([numbers, self.group(groups)], dim=1)
        logits: torch.Tensor = self.network(inputs)
        return logits


def generated(
    stream: int, size: int, *, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the numbers, groups and classes of a batch, the same for the same arguments."""
    secret = np.random.default_rng(seed).normal(size=NUM_GROUPS)
    random = np.random.default_rng((seed, stream))
    numbers = random.normal(size=(size, NUM_INPUTS)).astype(np.float32)
    groups = random.integers(NUM_GROUPS, size=size)
    halves = numbers.reshape(size, 2, -1).sum(axis=2) / 4
    classes = (halves[:, 0] + 0.5 * halves[:, 1] ** 2 + secret[groups] > 0.5).astype(np.int64)
    return torch.from_numpy(numbers), torch.from_numpy(groups), torch.from_numpy(classes)


def train_batch(
    step: int, size: int, *, seed: int, lockstep: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return this worker's batch of a step.

    In lockstep the job's batch of ``size`` examples is shared by the workers; otherwise
    every worker has ``size`` examples of its own.
    """
    rank, num_workers = fleet.worker_index(), fleet.worker_num()
    if not lockstep:
        return generated(step * num_workers + rank, size, seed=seed)
    numbers, groups, classes = generated(step, size, seed=seed)
    return numbers[rank::num_workers], groups[rank::num_workers], classes[rank::num_workers]


def accuracy(model: torch.nn.Module, *, seed: int) -> float:
    """Return the share of test examples that the model gets right; all workers call it."""
    model.eval()
    numbers, groups, classes = generated(TEST_STREAM, NUM_TEST, seed=seed)
    with torch.no_grad():
        correct = model(numbers, groups).argmax(dim=1) == classes
    return float(fleet.metrics.acc(int(correct.sum()), NUM_TEST))


def strategy(mode: str, k_steps: int) -> fleet.DistributedStrategy:
    """Return the strategy of the mode."""
    chosen = fleet.DistributedStrategy()
    if mode != "collective":
        chosen.a_sync = mode != "sync"
    if mode == "geo":
        chosen.a_sync_configs = {"k_steps": k_steps}
    return chosen


@click.command(context_settings={"show_default": True})
@click.option(
    "--mode", type=click.Choice(["sync", "async", "geo", "collective"]), default="sync"
)
@click.option("--steps", type=click.IntRange(min=1), default=500)
@click.option("--batch_size", type=click.IntRange(min=1), default=128)
@click.option("--k_steps", type=click.IntRange(min=1), default=10)
@click.option("--lr", type=click.FloatRange(min=0, min_open=True), default=0.2)
@click.option("--seed", type=click.IntRange(min=0), default=0)
def main(mode: str, steps: int, batch_size: int, k_steps: int, lr: float, seed: int) -> None:
    """Train a small network on generated data."""
    collective = mode == "collective"
    fleet.init(is_collective=collective)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return

    torch.set_num_threads(1)  # the matrices are small: threads would only wait for each other
    torch.manual_seed(seed)
    model = fleet.distributed_model(Mlp(served=not collective, seed=seed))
    optimizer = fleet.distributed_optimizer(
        torch.optim.SGD(model.parameters(), lr=lr), strategy(mode, k_steps)
    )
    criterion = torch.nn.CrossEntropyLoss()
    fleet.init_worker()
    started = time.perf_counter()
    losses = []
    for step in range(steps):
        numbers, groups, classes = train_batch(
            step, batch_size, seed=seed, lockstep=mode in {"sync", "collective"}
        )
        loss = criterion(model(numbers, groups), classes)
        optimizer.minimize(loss)
        losses.append(loss.item())
        fleet.report(loss=losses[-1], examples=len(classes), total_steps=steps)
        if (step + 1) % 100 == 0:
            print(f"step {step + 1} loss {losses[-1]:.4f}", flush=True)
    seconds = time.perf_counter() - started
    fleet.finish_training()
    servers = 0 if collective else fleet.server_num()
    result = {
        "model": "mlp",
        "mode": mode if servers or collective else "local",
        "servers": servers,
        "workers": fleet.worker_num(),
        "steps": steps,
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "test_accuracy": accuracy(model, seed=seed),
        "seconds": seconds,
    }
    fleet.stop_worker()
    if fleet.is_first_worker():
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
