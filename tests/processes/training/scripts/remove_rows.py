"""Train a few rows, and remove some of them on the way; print what is held at the end."""

import argparse
import json
from collections.abc import Iterator
from typing import Any

import torch

import paramfleet as fleet
from paramfleet.training.modes.sync import RemovalNotSharedError

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="sync")
parser.add_argument("--optimizer", default="adagrad")
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--every", type=int, default=7, help="steps between two removals")
parser.add_argument("--wire_dtype", default="float32")
parser.add_argument("--prefetch", action="store_true")
parser.add_argument("--by_rank", default="split", help="split, or first")
parser.add_argument("--wrong", action="store_true")
parser.add_argument("--apart", action="store_true", help="once, from tables of their own")
parser.add_argument("--late", action="store_true", help="once, before a backward pass")
parser.add_argument("--dim", type=int, default=4)
args = parser.parse_args()

NUM_IDS, BATCH = 120, 48
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}

fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    raise SystemExit(0)

rank, size = fleet.worker_index(), fleet.worker_num()
torch.manual_seed(0)
strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode != "sync"
if args.mode == "geo":
    strategy.a_sync_configs = {"k_steps": 3}
strategy.a_sync_configs["wire_dtype"] = args.wire_dtype
if strategy.a_sync:
    strategy.a_sync_configs["fresh_steps"] = 5


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = fleet.nn.Embedding(0, args.dim, initializer=fleet.nn.uniform(-0.1, 0.1))
        if args.apart:
            self.more = fleet.nn.Embedding(0, 1)
        self.out = torch.nn.Linear(3 * args.dim, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out(self.rows(ids).flatten(1)).squeeze(1)
        return logits


model = fleet.distributed_model(Model())
optimizer = fleet.distributed_optimizer(
    OPTIMIZERS[args.optimizer](model.parameters()), strategy
)
fleet.init_worker()

data = torch.Generator().manual_seed(1)


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for _ in range(args.steps):
        ids = torch.randint(0, NUM_IDS, (BATCH, 3), generator=data)
        label = ((ids % 7).sum(1) > 9).float()
        mine = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
        yield ids[mine], label[mine]


def of_removal(number: int) -> list[int]:
    """Return which ids go, of all workers together, one of them by two workers."""
    ids = torch.arange(number % 3, NUM_IDS, 3).tolist()
    if args.by_rank == "first":
        return ids if rank == 0 else []
    return [*ids[rank::size], ids[0], 10**12]


model.eval()
with torch.no_grad():
    first = model.rows(torch.arange(NUM_IDS)).flatten().tolist()
model.train()
loader: Any = fleet.prefetch(batches(), model) if args.prefetch else batches()
losses: list[float] = []
removed: list[int] = []
begins_anew, problem = True, ""
for step, (ids, label) in enumerate(loader):
    if step and not step % args.every and (args.mode == "sync" or rank == 0 or size == 1):
        gone = of_removal(len(removed))
        removed.append(fleet.remove_rows(model.rows, gone))
        if args.mode == "sync":
            fleet.remove_rows("rows", [])
            model.eval()
            with torch.no_grad():
                now = model.rows(torch.arange(NUM_IDS)).flatten().tolist()
            model.train()
            for key in of_removal(len(removed) - 1):
                span = slice(args.dim * key, args.dim * key + args.dim)
                begins_anew &= now[span] == first[span]
    if args.wrong and step == 3 and rank == 0:
        try:
            fleet.remove_rows("rows", [1])
        except RemovalNotSharedError as error:
            problem = str(error)
    if args.apart and step == 3:
        try:
            fleet.remove_rows("more" if rank else "rows", torch.arange(NUM_IDS))
        except RemovalNotSharedError as error:
            problem = str(error)
        fleet.remove_rows("rows", [])  # which all call, in the same step
    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(ids), label)
    if args.late and step == 4:
        removed.append(fleet.remove_rows("rows", [int(ids[0, 0])]))
    optimizer.minimize(loss)
    losses.append(loss.item() * len(ids) / BATCH)
losses = fleet.util.all_reduce(losses, "sum").tolist()
fleet.finish_training()
model.eval()
with torch.no_grad():
    rows = model.rows(torch.arange(NUM_IDS)).flatten().tolist()
dense = torch.cat([p.flatten() for p in model.out.parameters()]).tolist()
facts = {"losses": losses, "rows": rows, "dense": dense, "removed": removed}
print(
    json.dumps({"rank": rank, **facts, "begins_anew": begins_anew, "problem": problem}),
    flush=True,
)
fleet.stop_worker()
