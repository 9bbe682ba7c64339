"""Train a small GPT on characters with DiLoCo: see README.md beside this file.

    torchrun --nproc_per_node=4 examples/char_lm_diloco/train.py --text FILE

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
from characters import read_text, windows  # type: ignore[import-not-found]
from gpt import Gpt  # type: ignore[import-not-found]

import paramfleet as fleet

_WARM_UP = 50
"""Steps in which the learning rate rises."""
_HELD_OUT_BATCHES = 20

_FORMATS = ("float32", "float16", "bfloat16", "int8", "float8_e4m3")


def strategy(method: str, options: dict[str, Any]) -> fleet.DistributedStrategy:
    """Return the strategy of a method; ``ddp`` is the default one."""
    chosen = fleet.DistributedStrategy()
    if method == "diloco":
        chosen.diloco = True
        keys = ("k_steps", "wire_dtype", "fragments", "overlap_steps")
        chosen.diloco_configs = {key: options[key] for key in keys}
        if options["overlap_steps"]:
            chosen.diloco_configs["mixing"] = options["mixing"]
    return chosen


def rate_share(step: int, steps: int) -> float:
    """Return the share of the learning rate at a step: a rise, then half a cosine."""
    if step < _WARM_UP:
        return (step + 1) / _WARM_UP
    return 0.5 * (1 + math.cos(math.pi * (step - _WARM_UP) / max(1, steps - _WARM_UP)))


def loss_of(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the mean loss in nats a character."""
    ids, following = batch
    return torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), following.flatten())


@click.command(context_settings={"show_default": True})
@click.option(
    "--text", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True,
    help="UTF-8, packed by xz or not.",
)  # fmt: skip
@click.option("--method", type=click.Choice(["ddp", "diloco"]), default="diloco")
@click.option("--k_steps", type=click.IntRange(min=1), default=30, help="Steps of a period.")
@click.option("--wire_dtype", type=click.Choice(_FORMATS), default="int8")
@click.option("--fragments", type=click.IntRange(min=1), default=1, help="Streaming DiLoCo.")
@click.option("--overlap_steps", type=click.IntRange(min=0), default=0)
@click.option("--mixing", type=click.FloatRange(min=0, max=1), default=0.0)
@click.option("--steps", type=click.IntRange(min=1), default=1000)
@click.option("--batch_size", type=click.IntRange(min=1), default=8, help="Of a worker.")
@click.option("--context", type=click.IntRange(min=1), default=64)
@click.option("--width", type=click.IntRange(min=4), default=64)
@click.option("--depth", type=click.IntRange(min=1), default=2)
@click.option("--lr", type=click.FloatRange(min=0, min_open=True), default=3e-3)
@click.option("--seed", type=click.IntRange(min=0), default=0)
@click.option(
    "--checkpoints", type=click.Path(file_okay=False, path_type=Path),
    help="Folder, for every 100 steps; goes on from the newest.",
)  # fmt: skip
def main(text: Path, method: str, steps: int, seed: int, **options: Any) -> None:
    """Train a small GPT on the characters of a text."""
    fleet.init(is_collective=True)
    torch.manual_seed(seed)
    found = read_text(text)
    context, rank = options["context"], fleet.worker_index()
    network = Gpt(found.vocabulary, context, width=options["width"], depth=options["depth"])
    model = fleet.distributed_model(network)
    inner = torch.optim.AdamW(
        model.parameters(), options["lr"], betas=(0.9, 0.95), weight_decay=0.1
    )
    optimizer = fleet.distributed_optimizer(inner, strategy(method, options))
    rates = torch.optim.lr_scheduler.LambdaLR(inner, lambda step: rate_share(step, steps))
    device = next(model.parameters()).device
    shown = windows(
        found.train, size=options["batch_size"], context=context, seed=seed, rank=rank
    )
    checkpoints = options["checkpoints"]
    fleet.register_for_checkpointing(rates=rates)
    if checkpoints and (newest := fleet.newest_checkpoint(checkpoints)) is not None:
        fleet.load_model(newest)
    began, first = time.perf_counter(), optimizer.num_steps
    for step, batch in enumerate(islice(shown, first, steps), first):
        loss = loss_of(model, (batch[0].to(device), batch[1].to(device)))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        rates.step()
        if fleet.is_first_worker() and (step + 1) % 100 == 0:
            print(f"step {step + 1} of {steps} loss {loss.item():.4f}", flush=True)
        if checkpoints and (step + 1) % 100 == 0:
            fleet.save_persistables(checkpoints, keep=2)
    fleet.finish_training()
    seconds = time.perf_counter() - began
    held_out = windows(found.held_out, size=64, context=context, seed=0, rank=rank)
    model.eval()
    with torch.no_grad():
        losses = [
            float(loss_of(model, (ids.to(device), following.to(device))))
            for ids, following in islice(held_out, _HELD_OUT_BATCHES)
        ]
    ledger = getattr(optimizer, "ledger", None)
    result = {
        "model": "Gpt",
        "method": method,
        "workers": fleet.worker_num(),
        "loss": float(fleet.metrics.mae(sum(losses), len(losses))),
        "seconds": seconds,
        **({} if ledger is None else ledger.as_json()),
    }
    if fleet.is_first_worker():
        print(json.dumps(result), flush=True)
    fleet.stop_worker()


if __name__ == "__main__":
    main()
