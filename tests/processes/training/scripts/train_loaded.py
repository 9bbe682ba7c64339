"""Train until a file is there; say what a load by command left, and save that in worker 0."""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.optim.lr_scheduler import StepLR

import paramfleet as fleet

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="sync")
parser.add_argument("--folder", required=True)
parser.add_argument("--until", required=True, help="end when this file is there")
parser.add_argument("--steps_of_0", type=int, default=0, help="worker 0 ends after so many")
parser.add_argument("--meets", action="store_true", help="all meet after every tenth step")
parser.add_argument(
    "--allowing", default="", help="pserver 0 alone loads from this folder, too"
)
parser.add_argument("--prefetch", action="store_true", help="rows come ahead of their batch")
args = parser.parse_args()

torch.manual_seed(7)
fleet.init()
if fleet.is_server():
    fleet.init_server()
    more = [args.allowing] if args.allowing and fleet.server_index() == 0 else []
    fleet.run_server(checkpoint_dirs=more)
    raise SystemExit(0)


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        if args.mode != "localsgd":  # whose models have no tables of rows
            self.deep = fleet.nn.Embedding(0, 4)
        self.out = torch.nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        known = args.mode != "localsgd"
        rows = self.deep(ids) if known else torch.stack([ids % n for n in (2, 3, 5, 7)], 1) / 7
        logits: torch.Tensor = self.out(rows).squeeze(1)
        return logits


rank = fleet.worker_index()
strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode != "sync"
if args.mode == "geo":
    strategy.a_sync_configs = {"k_steps": 3, "geo_growth": 0}
if args.mode == "localsgd":
    strategy.localsgd = True
    strategy.localsgd_configs = {"k_steps": 4}
model = fleet.distributed_model(Small())
served = args.mode in {"sync", "async"}
kind = torch.optim.Adagrad if served else torch.optim.SGD
optimizer = fleet.distributed_optimizer(kind(model.parameters(), lr=0.05), strategy)
schedule = StepLR(optimizer, 1_000_000)
fleet.register_for_checkpointing(schedule=schedule)
fleet.init_worker()
data = torch.Generator().manual_seed(rank)
step = num_loads = known = 0


def batches() -> Iterator[torch.Tensor]:
    while not Path(args.until).exists():
        yield torch.randint(0, 1000, (32,), generator=data)


for ids in fleet.prefetch(batches(), model) if args.prefetch else batches():
    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(ids), (ids % 2).float())
    optimizer.minimize(loss)
    schedule.step()
    step += 1
    if step == 5:
        print(f"training as {rank}", flush=True)
    known, before = optimizer.num_steps, known
    if known != before + 1:
        num_loads += 1
        dense = model.out.weight.flatten().tolist() + model.out.bias.tolist()
        said = {"step": known, "schedule": schedule.last_epoch, "dense": dense}
        print(f"loaded {json.dumps(said)}", flush=True)
        fleet.barrier_worker()  # nobody trains
        if args.mode != "localsgd":  # where a save synchronizes
            fleet.save_persistables(f"{args.folder}/after-{num_loads}")
        fleet.barrier_worker()
    if args.meets and step % 10 == 0:
        fleet.barrier_worker()
    time.sleep(0.01)  # noqa: TID251 - leaves the cores to the other processes of the test
    if rank == 0 and step == args.steps_of_0:
        break
print(f"stopping after {step}", flush=True)
fleet.stop_worker()
print(json.dumps({"loads": num_loads, "steps": step}), flush=True)
