"""Every worker adds known numbers, to rows of its own and to rows that all have.

Sums don't depend on the order of additions: so the end tells whether each was added once.
"""

import argparse
import json
from typing import Any

import torch

import paramfleet as fleet

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="async")
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--pool", type=int, default=4, help="pushes in flight at once")
parser.add_argument("--wire_dtype", default="float32")
parser.add_argument("--learns", action="store_true", help="with Adam, from what it has read")
parser.add_argument("--max_staleness", type=int)
args = parser.parse_args()


class Ledger(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        start: dict[str, Any] = {"initializer": fleet.nn.constant(0.0)}
        sizes = {} if args.mode == "localsgd" else {"narrow": 2, "wide": 16}
        self.tables = torch.nn.ModuleDict(
            {name: fleet.nn.Embedding(0, dim, **start) for name, dim in sizes.items()}
        )
        self.dense = torch.nn.Parameter(torch.zeros(64))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if args.learns:
            read = self.tables["wide"](ids).mean() + self.tables["narrow"](ids).mean()
            return (torch.tanh(read + self.dense.sum()) - (len(ids) + step % 5) / 40) ** 2
        total = self.dense[rank::size].sum()
        for table in self.tables.values():
            total = total + table(ids).sum()
        return total


fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    raise SystemExit(0)

rank, size = fleet.worker_index(), fleet.worker_num()
strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode != "sync"
if args.mode == "async":
    strategy.a_sync_configs = {"thread_pool_size": args.pool, "send_queue_size": 4}
    strategy.a_sync_configs["async_rate"] = "full"  # adds up
    strategy.a_sync_configs["fresh_steps"] = 0
if args.mode == "geo":
    strategy.a_sync_configs = {"k_steps": 2, "geo_merge": "remainder", "fresh_steps": 0}
if args.mode == "localsgd":
    strategy.diloco = True
    strategy.diloco_configs = {
        "k_steps": 3,
        "outer_optimizer": "sgd",  # adds up, whatever the order
        "outer_lr": 1.0,
        "outer_momentum": 0.0,
    }
if strategy.a_sync and args.mode != "localsgd":
    strategy.a_sync_configs["wire_dtype"] = args.wire_dtype
model = fleet.distributed_model(Ledger())
if args.max_staleness is not None:
    strategy.a_sync_configs["max_staleness"] = args.max_staleness
inner: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
if args.learns:
    inner = torch.optim.Adam(model.parameters(), lr=0.01)
optimizer = fleet.distributed_optimizer(inner, strategy)
fleet.init_worker()
step, losses = 0, list[float]()
own, common = torch.arange(32) + (rank + 1) * 1000, torch.arange(24)
for step in range(1, args.steps + 1):
    new = torch.tensor([100_000 * (rank + 1) + step % 97])
    loss = model(torch.cat([own, common, new]))
    optimizer.minimize(loss if args.learns else -loss, examples=1)
    losses.append(loss.item())
    if step % 10 == 0:
        print(f"step {step}.", flush=True)
fleet.barrier_worker()  # LocalSGD divides by the workers that still train
fleet.finish_training()
model.eval()
with torch.no_grad():
    everything = [common, *((torch.arange(32) + (r + 1) * 1000) for r in range(size))]
    everything += [100_000 * (r + 1) + torch.arange(97) for r in range(size)]
    rows = {name: table(torch.cat(everything)).tolist() for name, table in model.tables.items()}
fleet.stop_worker()
found = {"rows": rows, "dense": model.dense.tolist()}
print(json.dumps({**found, "losses": losses if args.learns else []}))
