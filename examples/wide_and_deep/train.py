"""Train wide and deep, or another model of clicks: in this process, or on a job.

    python examples/wide_and_deep/train.py
    paramfleet launch --server_num 2 --worker_num 2 examples/wide_and_deep/train.py --mode geo

In gpubox mode an epoch is a pass: its rows are on the model's device while they are trained.

The last line on standard output of worker 0 is one JSON object with the result.
"""

import json
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click
import torch
from rich.console import Console
from rich.table import Table

import paramfleet as fleet
from data import DATASETS, load_dataset
from display import tracked
from dlrm import Dlrm
from evaluation import evaluate
from model import WideDeep
from records import Batch, BatchPlan, Dataset
from two_tower import TwoTower

MODELS = {"wide_deep": WideDeep, "two_tower": TwoTower, "dlrm": Dlrm}

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "sgd": torch.optim.SGD,
}
LEARNING_RATES = {"adagrad": 0.05, "adam": 0.002, "momentum": 0.2, "sgd": 2.0}
"""Gradients of a row are small, since a batch has few of its id: plain SGD needs a high
rate. Adagrad gives rare and frequent ids a rate of their own and is the default."""

EPOCHS = {"flights": 2, "census": 6}
BATCH_SIZES = {"flights": 512, "census": 256}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What the command line said."""

    mode: Literal["sync", "async", "geo", "gpubox"]
    model: Literal["wide_deep", "two_tower", "dlrm"]
    data: str
    data_dir: Path | None
    cache_dir: Path
    epochs: int | None
    batch_size: int | None
    k_steps: int
    lr: float | None
    seed: int
    optimizer: str
    log_steps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What a run came to, in the order it is printed.

    Times are those of worker 0; the staleness is that of the worker that led most.
    """

    model: str
    mode: str
    servers: int
    workers: int
    epochs: int
    test_auc: float
    test_accuracy: float
    examples_per_s: float
    seconds: float
    staleness_p99: float


def train(settings: Settings) -> Result:
    """Train this worker's share, score the test rows with the others, and tell."""
    cache_dir = settings.cache_dir.expanduser() / "paramfleet"
    dataset = load_dataset(settings.data, data_dir=settings.data_dir, cache_dir=cache_dir)
    epochs = settings.epochs or EPOCHS[settings.data]
    plan = batch_plan(settings)

    torch.set_num_threads(1)  # the matrices are small: threads would only wait for each other
    torch.manual_seed(settings.seed)
    model = fleet.distributed_model(
        MODELS[settings.model](
            num_deep_fields=dataset.train.deep_ids.shape[1],
            num_dense=dataset.train.dense.shape[1],
            seed=settings.seed,
        )
    )
    optimizer = fleet.distributed_optimizer(make_optimizer(model, settings), strategy(settings))
    criterion = torch.nn.BCEWithLogitsLoss()
    fleet.init_worker()

    started = time.perf_counter()
    num_steps = epochs * plan.steps_per_epoch(len(dataset.train))
    in_passes = settings.mode == "gpubox"
    num_taken = 0
    with closing(batches_of(dataset, plan, epochs, model if in_passes else None)) as batches:
        for batch in tracked(batches, num_steps=num_steps, log_steps=settings.log_steps):
            if fleet.should_stop():
                break
            num_taken += 1
            loss = criterion(logits_of(model, batch), batch.labels)
            optimizer.minimize(loss)
            fleet.report(loss=loss.item(), examples=len(batch.labels), total_steps=num_steps)
    fleet.finish_training()
    seconds = time.perf_counter() - started

    scores = evaluate(model, dataset.test)
    staleness_p99 = float(fleet.metrics.max(optimizer.staleness_p99()))
    fleet.stop_worker()
    num_examples = num_taken * plan.batch_size * (1 if plan.lockstep else plan.num_workers)
    return Result(
        model=settings.model,
        mode=settings.mode if fleet.server_num() else "local",
        servers=fleet.server_num(),
        workers=fleet.worker_num(),
        epochs=epochs,
        test_auc=scores.auc,
        test_accuracy=scores.accuracy,
        examples_per_s=num_examples / seconds,
        seconds=seconds,
        staleness_p99=staleness_p99,
    )


def batch_plan(settings: Settings) -> BatchPlan:
    """Return how the workers of this job share the rows."""
    return BatchPlan(
        batch_size=settings.batch_size or BATCH_SIZES[settings.data],
        seed=settings.seed,
        num_workers=fleet.worker_num(),
        lockstep=settings.mode in {"sync", "gpubox"},
    )


def batches_of(
    dataset: Dataset, plan: BatchPlan, epochs: int, passing: torch.nn.Module | None
) -> Generator[Batch, None, None]:
    """Yield this worker's batches, epoch after epoch.

    Args:
        dataset: What they are of.
        plan: Which rows they have.
        epochs: How many.
        passing: A model whose rows are on its device during each epoch; None for another mode.
    """
    for epoch in range(epochs):
        rows = plan.rows(len(dataset.train), epoch=epoch, rank=fleet.worker_index())
        batches = map(dataset.train.batch, rows)
        if passing is None:
            yield from batches
        else:
            yield from fleet.device_pass(
                batches, passing, forward=lambda batch: logits_of(passing, batch)
            )


def logits_of(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return the logits of a batch's examples, float32 ``[B]``."""
    logits: torch.Tensor = model(batch.wide_ids, batch.deep_ids, batch.dense)
    return logits


def make_optimizer(model: torch.nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Return torch's optimizer of that name, over all parameters."""
    lr = settings.lr or LEARNING_RATES[settings.optimizer]
    return OPTIMIZERS[settings.optimizer](model.parameters(), lr=lr)


def strategy(settings: Settings) -> fleet.DistributedStrategy:
    """Return the strategy of the mode."""
    chosen = fleet.DistributedStrategy()
    chosen.a_sync = settings.mode != "sync"
    if settings.mode == "geo":
        chosen.a_sync_configs = {"k_steps": settings.k_steps}
    if settings.mode == "gpubox":
        chosen.a_sync_configs = {"use_ps_gpu": 1}
    return chosen


def print_result(result: Result) -> None:
    """Print a table for people, then one JSON object for programs."""
    table = Table("what", "value", title=result.model)
    for name, value in asdict(result).items():
        table.add_row(name, f"{value:,.4f}" if isinstance(value, float) else str(value))
    Console().print(table)
    print(json.dumps(asdict(result)), flush=True)


@click.command(context_settings={"show_default": True})
@click.option("--mode", type=click.Choice(["sync", "async", "geo", "gpubox"]), default="geo")
@click.option("--model", type=click.Choice(list(MODELS)), default="wide_deep")
@click.option("--data", type=click.Choice(DATASETS), default="flights")
@click.option(
    "--data_dir",
    type=click.Path(path_type=Path),
    envvar="PARAMFLEET_DATA",
    help="Folder with the census.",
)
@click.option(
    "--cache_dir",
    type=click.Path(path_type=Path),
    envvar="XDG_CACHE_HOME",
    default=Path("~/.cache"),
    help="Prepared arrays go to paramfleet/ in it.",
)
@click.option("--epochs", type=click.IntRange(min=1), help="Default: by data set.")
@click.option(
    "--batch_size",
    type=click.IntRange(min=1),
    help="Examples in a step; of the whole job in sync and gpubox, of each worker else.",
)
@click.option(
    "--k_steps",
    type=click.IntRange(min=1),
    default=50,
    help="geo: steps between two exchanges.",
)
@click.option(
    "--lr", type=click.FloatRange(min=0, min_open=True), help="Default: by optimizer."
)
@click.option("--seed", type=click.IntRange(min=0), default=0)
@click.option("--optimizer", type=click.Choice(list(OPTIMIZERS)), default="adagrad")
@click.option(
    "--log_steps",
    type=click.IntRange(min=0),
    default=100,
    help="Steps between two lines of progress; 0 is silence.",
)
def main(**options: Any) -> None:
    """Train a model of clicks."""
    fleet.init()
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
    else:
        result = train(Settings(**options))
        if fleet.worker_index() == 0:
            print_result(result)


if __name__ == "__main__":
    main()
