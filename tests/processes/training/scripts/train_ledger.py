"""Every worker adds 1 in each step to numbers that nobody else touches, in every table.

So a checkpoint tells which pushes are in it: all numbers of one worker are the same, in every
table and on every pserver, if and only if it holds one set of its pushes.
"""

import argparse
import time
from pathlib import Path

import torch

import paramfleet as fleet
from paramfleet.api.public import session
from paramfleet.training.modes.geo import mode as geo
from paramfleet_shared.checkpoint.manifest import CheckpointWriteError

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="async")
parser.add_argument("--until", default="", help="end when this file is there")
parser.add_argument("--save", default="", help="worker 0 saves here, while others train")
parser.add_argument("--save_at", type=int, default=40, help="and after which step")
parser.add_argument("--fragments", type=int, default=1)
parser.add_argument("--message_values", type=int)
parser.add_argument("--every_s", type=float, default=0.0, help="periodic checkpoints")
parser.add_argument("--keep", type=int, default=2)
parser.add_argument("--incremental", type=int, default=0, help="increments after a whole one")
parser.add_argument("--hold_at", type=int, default=0, help="worker 0 begins to save, no more")
parser.add_argument("--pool", type=int, default=1, help="pushes in flight at once")
args = parser.parse_args()

NUM_IDS = 32

if args.message_values:
    geo._MESSAGE_VALUES = args.message_values


class Ledger(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        start = fleet.nn.constant(0.0)
        sizes = {} if args.mode == "localsgd" else {"first": 2, "second": 4, "third": 16}
        self.tables = torch.nn.ModuleDict(
            {name: fleet.nn.Embedding(0, dim, initializer=start) for name, dim in sizes.items()}
        )
        self.dense = torch.nn.ParameterList(
            [torch.nn.Parameter(torch.zeros(size * 32)) for _ in range(3)]
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        total = torch.stack([each[rank::size].sum() for each in self.dense]).sum()
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
    strategy.a_sync_configs["fresh_steps"] = 0  # or nothing is queued
if args.mode == "geo":
    strategy.a_sync_configs = {"k_steps": 2, "geo_merge": "remainder"}  # adds up
    strategy.a_sync_configs["fresh_steps"] = 0  # or no exchange is in flight
if args.mode == "localsgd":
    strategy.diloco = True
    strategy.diloco_configs = {
        "k_steps": 3,
        "fragments": args.fragments,
        "outer_optimizer": "sgd",  # adds up, whatever the order
        "outer_lr": 1.0,
        "outer_momentum": 0.0,
    }
if args.every_s:
    strategy.checkpoint_configs = {
        "every_s": args.every_s,
        "keep": args.keep,
        "dirname": args.save,
        "incremental": args.incremental,
    }
model = fleet.distributed_model(Ledger())
optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=1.0), strategy)
fleet.init_worker()
ids = torch.arange(NUM_IDS) + rank * 1000
step = 0
while not Path(args.until).exists():
    optimizer.minimize(-model(ids), examples=1)
    step += 1
    time.sleep(0.001)  # noqa: TID251 - leaves the cores to the other processes of the test
    if step == 5:
        print(f"training as {rank}", flush=True)
    if step == args.hold_at and rank == 0:
        job = session.job
        assert job is not None
        fields = {"cut": "mine", "for_s": 3.0, "targets": []}
        job.communicator.wait(job.pservers.call_all("hold", {**job.author.fields(), **fields}))
        print("holding", flush=True)
        time.sleep(600)  # noqa: TID251 - until it is killed
    if step == args.save_at and args.save and not args.every_s and rank == 0:
        try:
            fleet.save_persistables(args.save)
        except CheckpointWriteError as error:
            print(f"not saved: {error}", flush=True)
        else:
            print("saved", flush=True)
fleet.stop_worker()
print(f"ended after {step}", flush=True)
