"""One of the workers that ``localsgd.py`` lets train apart: run after run, in one process.

    python localsgd_worker.py RANK WORKERS STORE PLAN

STORE is a file through which the workers find each other. PLAN is a JSON list of runs, each
with the fields of ``Run``. Rank 0 prints a JSON line for each: ``accuracy`` or ``loss``,
``seconds`` of training, and the ledger's counts.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from paramfleet.training.localsgd.buckets import WholeMean
from paramfleet.training.localsgd.core.ledger import Ledger
from paramfleet.training.localsgd.core.settings import LocalSgdSettings
from paramfleet.training.localsgd.group_synchronizer import GroupSynchronizer
from paramfleet.training.localsgd.layout import Layout, trained_parameters
from paramfleet.training.localsgd.optimizer import LocalSgdOptimizer

sys.path.append(str(Path(__file__).parents[2] / "examples" / "resnet_localsgd"))
sys.path.append(str(Path(__file__).parents[2] / "examples" / "char_lm_diloco"))

from characters import Text, read_text, windows  # type: ignore[import-not-found]
from gpt import Gpt  # type: ignore[import-not-found]
from images import Images, batches, read_mnist  # type: ignore[import-not-found]
from resnet import SmallResNet  # type: ignore[import-not-found]

from localsgd_link import Link, LinkedSynchronizer

WIDTHS = (8, 16, 32, 64)
EVALUATION_BATCHES = 24

Batch = tuple[torch.Tensor, torch.Tensor]
Forward = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training."""

    name: str
    """What rank 0 calls it."""
    task: Literal["images", "text"]
    settings: dict[str, Any] | None
    """Of ``LocalSgdSettings``; None for torch's DistributedDataParallel."""
    seed: int
    steps: int
    """Of each worker."""
    rate: float
    """The highest learning rate; after a warm-up it follows a cosine to 0."""
    batch: int = 32
    """Examples of a worker's step."""
    warm_up: int = 50
    """Steps."""
    is_linked: bool = False
    """Whether the slow link is between the workers; nothing is evaluated then."""
    size: dict[str, int] = field(default_factory=dict)
    """``text``: of the model, beside the vocabulary."""
    data: dict[str, str] = field(default_factory=dict)
    """``images``: a folder; ``text``: a file."""


class Data:
    """What is read once for all runs."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}

    def images(self, folder: str) -> tuple[Images, Images]:
        """Return MNIST for training and testing."""
        if folder not in self._kept:
            self._kept[folder] = tuple(read_mnist(Path(folder), p) for p in ("train", "t10k"))
        found: tuple[Images, Images] = self._kept[folder]
        return found

    def text(self, file: str) -> Text:
        """Return a text."""
        if file not in self._kept:
            self._kept[file] = read_text(Path(file))
        found: Text = self._kept[file]
        return found


def train_images(run: Run, data: Data) -> dict[str, Any]:
    """Train a small residual network; return its accuracy in percent."""
    train, test = data.images(run.data["images"])
    model = SmallResNet(train.channels, widths=WIDTHS)
    inner = torch.optim.SGD(
        model.parameters(), run.rate, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    rank, size = dist.get_rank(), dist.get_world_size()
    dealt = batches(train, size=run.batch, seed=run.seed, rank=rank, num_workers=size)
    found = _train(run, model, inner, dealt, torch.nn.functional.cross_entropy)
    if not run.is_linked:
        model.eval()
        right = 0
        with torch.no_grad():
            for numbers in torch.split(torch.arange(rank, len(test), size), 500):
                pixels, labels = test.take(numbers)
                right += int((model(pixels).argmax(1) == labels).sum())
        found["accuracy"] = 100 * _sum(right) / len(test)
    return found


def train_text(run: Run, data: Data) -> dict[str, Any]:
    """Train a small GPT; return its loss on held-out text, in nats a character."""
    text = data.text(run.data["text"])
    context = run.size["context"]
    model = Gpt(text.vocabulary, **run.size)
    inner = torch.optim.AdamW(model.parameters(), run.rate, betas=(0.9, 0.95), weight_decay=0.1)
    rank = dist.get_rank()
    shown = windows(text.train, size=run.batch, context=context, seed=run.seed, rank=rank)
    found = _train(run, model, inner, shown, _character_loss)
    if not run.is_linked:
        held_out = windows(text.held_out, size=64, context=context, seed=0, rank=rank)
        with torch.no_grad():
            losses = [
                _character_loss(model(x), y) for x, y in islice(held_out, EVALUATION_BATCHES)
            ]
        own = float(torch.stack(losses).mean())
        found["loss"] = _sum(own) / dist.get_world_size()
    return found


def _character_loss(logits: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())


def _sum(value: float) -> float:
    values = torch.tensor([float(value)], dtype=torch.float64)
    dist.all_reduce(values)
    return float(values)


def _train(
    run: Run,
    model: torch.nn.Module,
    inner: torch.optim.Optimizer,
    data: Iterator[Batch],
    criterion: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> dict[str, Any]:
    """Take the run's steps; return seconds and counts."""
    ledger, optimizer, forward = _apart(run, model, inner)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        inner, lambda step: _rate_share(step, run.warm_up, run.steps)
    )
    dist.barrier()
    began = time.perf_counter()
    for inputs, targets in islice(data, run.steps):
        loss = criterion(forward(inputs), targets)
        inner.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if run.task == "text":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if optimizer is None:
            inner.step()
        else:
            optimizer.step(loss=loss)
        schedule.step()
    if optimizer is not None:
        optimizer.synchronize()
    dist.barrier()
    return {"name": run.name, "seed": run.seed, "seconds": time.perf_counter() - began} | (
        ledger.as_json()
    )


def _rate_share(step: int, warm_up: int, steps: int) -> float:
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def _apart(
    run: Run, model: torch.nn.Module, inner: torch.optim.Optimizer
) -> tuple[Ledger, LocalSgdOptimizer | None, Forward]:
    """Return what counts, what steps, and what is called forward."""
    if run.settings is None:
        ledger = Ledger()
        num_bytes = WholeMean(dist.new_group(), 1).num_bytes(
            sum(p.numel() for p in model.parameters())
        )
        for _ in range(run.steps):
            ledger.stepped()
            ledger.exchanged()
            ledger.sent(num_bytes)
        return ledger, None, DistributedDataParallel(model)
    settings = LocalSgdSettings(**run.settings)
    parameters = trained_parameters(inner)
    sizes = Layout(parameters, settings.fragments).sizes
    ledger = Ledger(settings.fragments)
    synchronizer = GroupSynchronizer(sizes, settings, ledger=ledger, device=torch.device("cpu"))
    synchronizer.align([*parameters, *model.buffers()])
    linked = LinkedSynchronizer(synchronizer, ledger, Link()) if run.is_linked else synchronizer
    optimizer = LocalSgdOptimizer(
        inner, settings, linked, ledger=ledger, buffers=model.buffers()
    )
    return ledger, optimizer, model


def main() -> None:
    """Join the others and train what the plan says."""
    rank, size, store, plan = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    data = Data()
    for fields in json.loads(Path(plan).read_text(encoding="utf-8")):
        run = Run(**fields)
        torch.manual_seed(run.seed)
        found = train_images(run, data) if run.task == "images" else train_text(run, data)
        if rank == 0:
            print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
