"""Train with batches whose features are NaN; print what is left of that as JSON."""

import argparse
import json
import logging
import time
from collections.abc import Iterable
from typing import Any

import torch

import paramfleet as fleet

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="sync")
parser.add_argument("--optimizer", default="adam")
parser.add_argument("--action", default="skip")
parser.add_argument("--bad", default="", help="rank:step, or both with commas between them")
parser.add_argument("--stands_for", type=int, default=1, help="without a job: workers")
parser.add_argument("--dense", action="store_true", help="rows are dense parameters")
parser.add_argument("--waits_s", type=float, default=0.0, help="in the end")
args = parser.parse_args()

STEPS = 8
BAD = {tuple(map(int, each.split(":"))) for each in args.bad.split(",") if each}
OPTIMIZERS: dict[str, Any] = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.05),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
}


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.deep = torch.nn.Embedding(30, 4) if args.dense else fleet.nn.Embedding(0, 4)
        self.norm = torch.nn.BatchNorm1d(4, affine=False)
        self.out = torch.nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        self.norm(factor.repeat(1, 4))  # whose statistics a NaN is to leave alone
        logits: torch.Tensor = self.out(self.deep(ids) * factor).squeeze(1)
        return logits


class Said(logging.Handler):
    """Keeps what the guard says."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.steps: list[str] = []
        self.rows: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == "worker.step_skipped":
            self.steps.append(record.__dict__["step"])
            self.rows.append(record.__dict__["rows"])


def batches(rank: int) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    random = torch.Generator().manual_seed(rank)
    found = []
    for step in range(1, STEPS + 1):
        ids = torch.randint(0, 30, (8,), generator=random)
        factor = torch.full((8, 1), float("nan") if (rank, step) in BAD else 1.0)
        found.append((ids, factor, (ids % 2).float()))
    return found


fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    raise SystemExit(0)

said = Said()
logging.getLogger("paramfleet").addHandler(said)
torch.manual_seed(0)
rank, size = fleet.worker_index(), fleet.worker_num()
strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode != "sync"
if args.mode == "geo":
    strategy.a_sync_configs = {"k_steps": 2}
if args.mode == "stale":
    strategy.a_sync_configs = {"max_staleness": 0, "fresh_steps": 0}
if args.mode == "gpubox":
    strategy.a_sync_configs = {"use_ps_gpu": 1}
if args.mode == "localsgd":
    strategy.localsgd = True
if args.stands_for == 1:  # else what is left out is left out by hand
    strategy.guard_configs = {"action": args.action}
model = fleet.distributed_model(Small())
optimizer = fleet.distributed_optimizer(
    OPTIMIZERS[args.optimizer](model.parameters()), strategy
)
fleet.init_worker()
if args.stands_for > 1:
    for step, parts in enumerate(zip(*map(batches, range(args.stands_for)), strict=True), 1):
        good = [part for other, part in enumerate(parts) if (other, step) not in BAD]
        if good:
            ids, factor, labels = (torch.cat(each) for each in zip(*good, strict=True))
            optimizer.minimize(torch.nn.functional.mse_loss(model(ids, factor), labels))
else:
    mine: Iterable[Any] = batches(rank)
    if args.mode == "gpubox":
        mine = fleet.device_pass(batches(rank), model, ids=lambda batch: {"deep": batch[0]})
    for ids, factor, labels in mine:
        loss = torch.nn.functional.mse_loss(model(ids, factor), labels)
        optimizer.minimize(loss)
        fleet.report(loss=loss.item(), examples=len(ids))
steps = optimizer.num_steps
time.sleep(args.waits_s)  # noqa: TID251 - an operator looks meanwhile
fleet.finish_training()
model.eval()
with torch.no_grad():
    rows = model.deep(torch.arange(30))
    dense = torch.cat([each.flatten() for each in model.out.parameters()])
mean, variance = model.norm.running_mean, model.norm.running_var
assert mean is not None
assert variance is not None
statistics = torch.cat([mean, variance])
print(
    json.dumps(
        {
            "rows": rows.flatten().tolist(),
            "dense": dense.tolist(),
            "statistics": statistics.tolist(),
            "steps": steps,
            "skipped": said.steps,
            "named": said.rows,
        }
    ),
    flush=True,
)
fleet.stop_worker()
