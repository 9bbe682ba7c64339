"""Trains day by day as a job of ``live.py``, or once on all days before one, in one process.

Each day is scored with the model of the days before, by all workers, and then trained. Worker
0 writes a JSON object for each day on standard output.
"""

import json
import threading
import time
from collections import deque
from pathlib import Path

import click
import numpy as np
import torch
from numpy.typing import NDArray

import paramfleet as fleet
from flights_by_day import Days
from model import WideDeep
from records import Examples

BATCH_SIZE = 128
"""Examples in a step of all workers together, also of one process alone."""

LEARNING_RATE = 0.05
SHOWN_DAYS = 7
"""The AUC that is shown while it trains is that of so many days."""

NUM_BUCKETS = 1 << 12
"""Scores are counted in so many equal buckets for the AUC that is shown."""

FOLLOWED_WITHIN_S = 120.0


def new_model(days: Days) -> WideDeep:
    """Return the model of these days' fields."""
    return WideDeep(
        num_deep_fields=days.examples.deep_ids.shape[1],
        num_dense=days.examples.dense.shape[1],
    )


def scored(
    model: torch.nn.Module, examples: Examples, rows: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return logits of the rows, float32 ``[rows]``."""
    batch = examples.batch(rows)
    with torch.no_grad():
        logits: torch.Tensor = model(batch.wide_ids, batch.deep_ids, batch.dense)
    return logits.numpy()


class Trainer:
    """The model and its optimizer, in this process's part of the job."""

    def __init__(self, days: Days) -> None:
        torch.set_num_threads(1)  # the matrices are small
        torch.manual_seed(0)
        self._examples = days.examples
        self.model = fleet.distributed_model(new_model(days))
        optimizer = torch.optim.Adagrad(self.model.parameters(), lr=LEARNING_RATE)
        self._optimizer = fleet.distributed_optimizer(optimizer)  # async is the default
        self._criterion = torch.nn.BCEWithLogitsLoss()
        fleet.init_worker()
        self.num_steps = 0

    def train(self, rows: NDArray[np.int64], *, seed: int) -> None:
        """Train the rows once, shuffled by a seed."""
        order = np.random.default_rng(seed).permutation(rows)
        size = BATCH_SIZE // fleet.worker_num()
        for first in range(0, len(order), size):
            batch = self._examples.batch(order[first : first + size])
            logits = self.model(batch.wide_ids, batch.deep_ids, batch.dense)
            loss = self._criterion(logits, batch.labels)
            self._optimizer.minimize(loss)
            fleet.report(loss=loss.item(), examples=len(batch.labels))
            self.num_steps += 1


class Shown:
    """What this worker counted of the last days' scores."""

    def __init__(self) -> None:
        self._counts: deque[NDArray[np.float64]] = deque(maxlen=SHOWN_DAYS)

    def auc_with(self, logits: NDArray[np.float32], labels: NDArray[np.float32]) -> float:
        """Return the AUC of the last days, this one too, over all workers.

        It returns once every worker has called it.
        """
        share = 1 / (1 + np.exp(-logits.astype(np.float64)))
        buckets = np.minimum((share * NUM_BUCKETS).astype(np.int64), NUM_BUCKETS - 1)
        of_day = [
            np.bincount(buckets[labels == label], minlength=NUM_BUCKETS) for label in (1, 0)
        ]
        self._counts.append(np.array(of_day, dtype=np.float64))
        positives, negatives = sum(self._counts, np.zeros((2, NUM_BUCKETS)))
        return fleet.metrics.auc(positives, negatives)


def train_by_days(days: Days, folder: Path, *, follower: Path | None, num_days: int) -> None:
    """Train this worker's share of each day, and leave what it scored in ``folder``.

    Args:
        days: What there is.
        folder: Gets ``scores-RANK.npz``; with a follower also the export of the model, and
            ``predictions.npy``, the logits of the last day.
        follower: A file that is there once somebody follows the job; the training begins then.
        num_days: How many days.
    """
    rank, num_workers = fleet.worker_index(), fleet.worker_num()
    trainer, shown = Trainer(days), Shown()
    if follower is not None and rank == 0:
        _await(follower)
    fleet.util.barrier()
    rows_scored: list[NDArray[np.int64]] = []
    logits_scored: list[NDArray[np.float32]] = []
    started = time.perf_counter()
    for day in range(num_days):
        share = days.rows(day)[rank::num_workers]
        auc = None
        if day >= days.warm_up:
            logits = scored(trainer.model, days.examples, share)
            rows_scored.append(share)
            logits_scored.append(logits)
            # A reduction over all workers: nobody trains a day that another one still scores.
            auc = shown.auc_with(logits, days.examples.labels[share])
        trainer.train(share, seed=day)
        fleet.util.barrier()  # nobody scores a day before the last one is trained
        if rank == 0:
            seconds = time.perf_counter() - started
            _tell(day=day, auc=auc, steps=trainer.num_steps, seconds=seconds)
    fleet.finish_training()
    np.savez(
        folder / f"scores-{rank}.npz",
        rows=np.concatenate(rows_scored or [np.empty(0, np.int64)]),
        logits=np.concatenate(logits_scored or [np.empty(0, np.float32)]),
    )
    if follower is not None:
        fleet.save_inference_model(str(folder / "export"))
        if rank == 0:
            logits = scored(trainer.model, days.examples, days.rows(num_days - 1))
            np.save(folder / "predictions.npy", logits)
    if rank == 0:
        _tell(trained=True)
    fleet.stop_worker()


def train_before(days: Days, day: int, folder: Path) -> None:
    """Train all days before one, once, and leave ``retrained-DAY.npy``: logits of that day."""
    trainer = Trainer(days)
    trainer.train(days.rows_before(day), seed=day)
    fleet.finish_training()
    logits = scored(trainer.model, days.examples, days.rows(day))
    np.save(folder / f"retrained-{day}.npy", logits)
    fleet.stop_worker()


def _await(file: Path) -> None:
    """Wait until there is a file.

    Raises:
        TimeoutError: It didn't come in time.
    """
    deadline = time.perf_counter() + FOLLOWED_WITHIN_S
    pause = threading.Event()
    _tell(waits=True)
    while not file.exists():
        if time.perf_counter() > deadline:
            msg = f"no server has followed the job for {FOLLOWED_WITHIN_S:.0f} s: no {file}"
            raise TimeoutError(msg)
        pause.wait(0.05)


def _tell(**facts: float | None) -> None:
    print(json.dumps(facts), flush=True)


@click.command()
@click.option("--data", type=click.Path(path_type=Path), required=True)
@click.option("--folder", type=click.Path(path_type=Path), required=True)
@click.option("--days", "num_days", type=int, required=True)
@click.option("--follower", type=click.Path(path_type=Path))
@click.option("--before", type=int, help="Train once on all days before this one.")
def main(
    data: Path, folder: Path, num_days: int, follower: Path | None, before: int | None
) -> None:
    """Train the flights in the order of time."""
    fleet.init()
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
    elif before is not None:
        train_before(Days.read(data), before, folder)
    else:
        train_by_days(Days.read(data), folder, follower=follower, num_days=num_days)


if __name__ == "__main__":
    main()
