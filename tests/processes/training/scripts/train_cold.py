"""Train two tables alike, of which one may be on disk, and print whether their rows are equal.

``equal``: whether all rows of both are the same to the bit; ``moved``: how many were trained;
``asked``: ids without a row in memory that were asked for ahead.
"""

import argparse
import json
from typing import Any

import torch

import paramfleet as fleet

NUM_IDS, STEPS, BATCH = 4000, 40, 64

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="sync")
parser.add_argument("--save", default="")
parser.add_argument("--load", default="")
parser.add_argument("--prefetch", action="store_true")
args = parser.parse_args()


class Twins(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        first = fleet.nn.constant(0.1)
        self.hot = fleet.nn.Embedding(0, 4, name="hot", initializer=first)
        self.cold = fleet.nn.Embedding(0, 4, name="cold", initializer=first)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = (self.hot(ids) + self.cold(ids)).sum((1, 2))
        return total


fleet.init()
if fleet.is_server():
    fleet.init_server(args.load or None)
    fleet.run_server()
    raise SystemExit(0)

strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode != "sync"
model = fleet.distributed_model(Twins())
optimizer = fleet.distributed_optimizer(
    torch.optim.Adagrad(model.parameters(), lr=0.1), strategy
)
fleet.init_worker()
if fleet.is_first_worker() and not args.load:
    assert fleet.prefetch_rows("cold", [0]).wait(60) == (0, 0, False)
fleet.barrier_worker()
random = torch.Generator().manual_seed(fleet.worker_index())
criterion = torch.nn.BCEWithLogitsLoss()
batches: Any = [
    (NUM_IDS ** torch.rand(BATCH, 3, generator=random)).long() for _ in range(STEPS)
]
for ids in fleet.prefetch(batches, model, depth=3) if args.prefetch else batches:
    optimizer.minimize(criterion(model(ids), (ids % 2).sum(1).float() / 3))
fleet.barrier_worker()
asked = 0
if fleet.is_first_worker():
    coming = [
        fleet.prefetch_rows(each, torch.arange(NUM_IDS).view(2, -1))
        for each in (model.hot, "cold")
    ]
    hot_rows, cold_rows = (each.wait(60) for each in coming)
    assert cold_rows.on_disk
    assert hot_rows == (0, 0, False), hot_rows
    asked = cold_rows.brought + cold_rows.left
model.eval()
hot, cold = (
    [table(torch.arange(start, start + 500)) for start in range(0, NUM_IDS, 500)]
    for table in (model.hot, model.cold)
)
equal = all(bool(torch.equal(*pair)) for pair in zip(hot, cold, strict=True))
moved = sum(int((part != 0.1).any(1).sum()) for part in cold)
if args.save and fleet.is_first_worker():
    fleet.save_persistables(args.save)
print(json.dumps({"equal": equal, "moved": moved, "asked": asked}))
fleet.stop_worker()
