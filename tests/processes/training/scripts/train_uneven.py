"""Train epochs with other numbers of batches in each worker, and a call of all after each.

Alone, the batches of one step of all workers are one batch.
"""

import argparse
import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import paramfleet as fleet
from paramfleet.api import public as surface
from paramfleet_shared.discovery.session import JobSession
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.telemetry import waiting

parser = argparse.ArgumentParser()
parser.add_argument("--counts", default="3,5;0,2;4,1", help="batches by epoch and worker")
parser.add_argument("--call", default="all_reduce", help="of all workers, after each epoch")
parser.add_argument("--mode", default="sync")
parser.add_argument("--optimizer", default="adam")
parser.add_argument("--sum", action="store_true", help="the loss is a sum over the batch")
parser.add_argument("--undeclared", action="store_true", help="the strategy says mean")
parser.add_argument(
    "--clip", type=float, default=0.0, help="norm that gradients are clipped to"
)
parser.add_argument("--norm_type", type=float, default=2.0)
parser.add_argument("--by", default="torch", help="what clips: torch, imported or fleet")
parser.add_argument("--wrong", default="", help="what worker 0 does that it must not")
parser.add_argument("--norms", action="store_true", help="with batch norm over all workers")
parser.add_argument(
    "--late", action="store_true", help="worker 1 learns late that a call ended"
)
args = parser.parse_args()

from torch.nn.utils import clip_grad_norm_  # noqa: E402 - as scripts import it, before init

if args.wrong == "hangs":
    waiting.TOLD_AFTER_S = 1.0
BATCH = 6
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = fleet.nn.Embedding(0, 4, initializer=fleet.nn.uniform(-0.3, 0.3))
        self.norm = torch.nn.BatchNorm1d(8) if args.norms else torch.nn.Identity()
        self.out = torch.nn.Linear(8, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out(self.norm(self.rows(ids).flatten(1))).squeeze(1)
        return logits


def batch_of(epoch: int, number: int, worker: int) -> tuple[torch.Tensor, torch.Tensor]:
    data = torch.Generator().manual_seed(1000 * epoch + 10 * number + worker)
    ids = torch.randint(0, 30, (BATCH + 2 * worker, 2), generator=data)
    return ids, ((ids % 7).sum(1) > 5).float()


async def barrier_late(self: JobSession, name: str, **options: Any) -> None:
    await barrier(self, name, **options)
    await SystemClock().sleep(0.3)


async def gather_late(
    self: JobSession, name: str, payload: bytes, **options: Any
) -> list[bytes]:
    found = await gather(self, name, payload, **options)
    await SystemClock().sleep(0.3)
    return found


def calls() -> dict[str, Callable[[], Any]]:
    one = np.ones(1)
    return {
        "all_reduce": lambda: fleet.util.all_reduce(one),
        "all_gather": lambda: fleet.util.all_gather(rank),
        "barrier": fleet.util.barrier,
        "barrier_worker": fleet.barrier_worker,
        "average_buffers": fleet.average_buffers,
        "metrics": lambda: fleet.metrics.sum(one),
        "newest": lambda: fleet.newest_checkpoint("none"),
        "exchange": lambda: fleet.util.exchange(
            "test", lambda _: iter(()), lambda *_: None, in_flight=1
        ),
        "none": lambda: None,
    }


fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    raise SystemExit(0)

rank, size = fleet.worker_index(), fleet.worker_num()
is_alone = surface.session.communicator is None
torch.manual_seed(0)
strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode != "sync"
strategy.sync_batch_norm = args.norms
if args.sum and not args.undeclared:
    strategy.loss_reduction = "sum"
model = fleet.distributed_model(Model())
optimizer = fleet.distributed_optimizer(
    OPTIMIZERS[args.optimizer](model.parameters()), strategy
)
fleet.init_worker()
barrier, gather = JobSession.barrier, JobSession.gather
if args.late and rank == 1:
    JobSession.barrier, JobSession.gather = barrier_late, gather_late  # type: ignore[method-assign]
reduction = "sum" if args.sum else "mean"
norms: list[float] = []


def learn(ids: torch.Tensor, label: torch.Tensor) -> None:
    loss = torch.nn.functional.binary_cross_entropy_with_logits(
        model(ids), label, reduction=reduction
    )
    torch.autograd.backward(loss)
    if args.clip and not (rank == 0 and args.wrong == "unclipped" and optimizer.num_steps == 1):
        clip = {
            "torch": torch.nn.utils.clip_grad_norm_,
            "imported": clip_grad_norm_,
            "fleet": getattr(fleet, "clip_grad_norm_", None),
        }[args.by]
        assert clip is not None
        norms.append(float(clip(model.parameters(), args.clip, norm_type=args.norm_type)))
    optimizer.step()
    optimizer.zero_grad()


for epoch, said in enumerate(args.counts.split(";")):
    counts = [int(count) for count in said.split(",")]
    for number in range(max(counts) if is_alone else counts[rank]):
        present = [rank]
        if is_alone:
            present = [worker for worker, count in enumerate(counts) if number < count]
        batches = [batch_of(epoch, number, worker) for worker in present]
        ids, label = (torch.cat(part) for part in zip(*batches, strict=True))
        if args.wrong == "between" and rank == 0 and number == 1:
            model(ids).sum().backward()
            calls()[args.call]()
        if args.wrong == "forward" and rank == 0 and number == 1:
            loss = model(ids).sum()
            calls()[args.call]()
            torch.autograd.backward(loss)
        if args.wrong == "hangs" and rank == 0 and number == 1:
            threading.Event().wait(15)
        if args.wrong == "evaluates" and not is_alone:
            model(ids)  # under autograd, as nobody should
        if args.wrong == "alone" and rank == 0 and number == 1:
            calls()[args.call]()
        learn(ids, label)
    calls()[args.call]()
fleet.finish_training()
with torch.no_grad():
    model.eval()
    rows = model.rows(torch.arange(30)).tolist()
found = {
    "rows": rows,
    "dense": torch.cat([each.flatten() for each in model.out.parameters()]).tolist(),
    "steps": optimizer.num_steps,
    "norms": norms,
}
fleet.stop_worker()
print(json.dumps(found))
