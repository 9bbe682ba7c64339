"""Train a residual network with LocalSGD: see README.md beside this file.

    torchrun --nproc_per_node=4 examples/resnet_localsgd/train.py --data_dir FOLDER

The last line on standard output of worker 0 is one JSON object with the result.
"""

import json
import math
import time
from itertools import islice
from pathlib import Path
from typing import Any

import click
import torch
from images import (  # type: ignore[import-not-found]  # beside this file
    Folder,
    Images,
    Labelled,
    batches,
    read_cifar,
    read_mnist,
)
from resnet import ResNet50, SmallResNet  # type: ignore[import-not-found]

import paramfleet as fleet

_WARM_UP_SHARE = 0.05
"""Of all steps, in which the learning rate rises."""


def read(data: str, folder: Path) -> tuple[Labelled, Labelled]:
    """Return images to train on and images to test."""
    if data == "mnist":
        return read_mnist(folder, "train"), read_mnist(folder, "t10k")
    if data == "cifar10":
        return read_cifar(folder, "train10k"), read_cifar(folder, "test2k")
    return Folder(folder / "train"), Folder(folder / "val")


def strategy(method: str, k_steps: int, begin_step: int) -> fleet.DistributedStrategy:
    """Return the strategy of a method; ``ddp`` is the default one."""
    chosen = fleet.DistributedStrategy()
    if method == "localsgd":
        chosen.localsgd = True
        chosen.localsgd_configs = {"k_steps": k_steps, "begin_step": begin_step}
    elif method == "adaptive_localsgd":
        chosen.adaptive_localsgd = True
        chosen.adaptive_localsgd_configs = {"init_k_steps": k_steps, "begin_step": begin_step}
    elif method == "diloco":
        chosen.diloco = True
        chosen.diloco_configs = {"k_steps": k_steps}
    return chosen


def shifted(pixels: torch.Tensor) -> torch.Tensor:
    """Return a batch moved by up to two pixels, and mirrored or not, [B, C, H, W]."""
    down, right = (int(torch.randint(-2, 3, ())) for _ in range(2))
    moved = pixels.roll((down, right), (2, 3))
    return moved.flip(3) if pixels.shape[1] == 3 and torch.rand(()) < 0.5 else moved


def rate_share(step: int, steps: int) -> float:
    """Return the share of the learning rate at a step: a rise, then half a cosine."""
    warm_up = max(1, round(_WARM_UP_SHARE * steps))
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def accuracy(model: torch.nn.Module, images: Labelled, device: torch.device) -> float:
    """Return the share of images that the model gets right; all workers take part."""
    model.eval()
    own = torch.arange(fleet.worker_index(), len(images), fleet.worker_num())
    right = 0
    with torch.no_grad():
        for numbers in torch.split(own, 250):
            pixels, labels = images.take(numbers)
            right += int((model(pixels.to(device)).argmax(1).cpu() == labels).sum())
    return float(fleet.metrics.acc(right, len(own)))


@click.command(context_settings={"show_default": True})
@click.option(
    "--data_dir", type=click.Path(exists=True, path_type=Path), envvar="PARAMFLEET_DATA",
    required=True, help="Where the files are; for imagefolder its train/ and val/.",
)  # fmt: skip
@click.option("--data", type=click.Choice(["mnist", "cifar10", "imagefolder"]), default="mnist")
@click.option(
    "--method", type=click.Choice(["ddp", "localsgd", "adaptive_localsgd", "diloco"]),
    default="localsgd",
)  # fmt: skip
@click.option("--k_steps", type=click.IntRange(min=1), default=8, help="Or the first period.")
@click.option("--begin_step", type=click.IntRange(min=1), default=1, help="Post-local SGD.")
@click.option("--epochs", type=click.IntRange(min=1), default=3)
@click.option("--max_steps", type=click.IntRange(min=1), help="End after so many steps.")
@click.option("--batch_size", type=click.IntRange(min=1), default=32, help="Of a worker.")
@click.option("--lr", type=click.FloatRange(min=0, min_open=True), default=0.1)
@click.option("--seed", type=click.IntRange(min=0), default=0)
def main(data_dir: Path, data: str, method: str, seed: int, **options: Any) -> None:
    """Train a residual network on images."""
    fleet.init(is_collective=True)
    torch.manual_seed(seed)
    train, test = read(data, data_dir)
    network = (
        SmallResNet(train.channels, train.num_classes)
        if isinstance(train, Images)
        else ResNet50(train.num_classes)
    )
    model = fleet.distributed_model(network)
    inner = torch.optim.SGD(
        model.parameters(), options["lr"], momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    optimizer = fleet.distributed_optimizer(
        inner, strategy(method, options["k_steps"], options["begin_step"])
    )
    each = options["batch_size"] * fleet.worker_num()
    steps = options["epochs"] * (len(train) // each)
    steps = min(steps, options["max_steps"] or steps)
    rates = torch.optim.lr_scheduler.LambdaLR(inner, lambda step: rate_share(step, steps))
    torch.manual_seed(seed * 1009 + fleet.worker_index())  # of the shifts
    device = next(model.parameters()).device
    dealt = batches(
        train, size=options["batch_size"], seed=seed, rank=fleet.worker_index(),
        num_workers=fleet.worker_num(),
    )  # fmt: skip
    began = time.perf_counter()
    for step, (pixels, labels) in enumerate(islice(dealt, steps)):
        scores = model(shifted(pixels).to(device))
        loss = torch.nn.functional.cross_entropy(scores, labels.to(device))
        optimizer.minimize(loss)
        rates.step()
        if fleet.is_first_worker() and (step + 1) % 100 == 0:
            print(f"step {step + 1} of {steps} loss {loss.item():.4f}", flush=True)
    fleet.finish_training()
    seconds = time.perf_counter() - began
    result = {
        "model": type(network).__name__,
        "data": data,
        "method": method,
        "workers": fleet.worker_num(),
        "accuracy": accuracy(model, test, device),
        "samples_per_s": steps * each / seconds,
        **costs(optimizer),
    }
    if fleet.is_first_worker():
        print(json.dumps(result), flush=True)
    fleet.stop_worker()


def costs(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return what synchronizing cost; nothing for DDP, which all-reduces gradients."""
    ledger = getattr(optimizer, "ledger", None)
    return {} if ledger is None else ledger.as_json()


if __name__ == "__main__":
    main()
