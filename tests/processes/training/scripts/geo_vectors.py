"""Move one number by hand in GEO, step by step, and print what workers and servers hold."""

import argparse
import json

import numpy as np
import torch

import paramfleet as fleet
from paramfleet.api.public import session
from paramfleet.training.job import pull_dense
from paramfleet.transport.requests import Read, ReadPlan
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.rows.batch import RowIds

parser = argparse.ArgumentParser()
parser.add_argument("--kind", choices=["dense", "row"], default="dense")
parser.add_argument("--merge", default="damped")
args = parser.parse_args()
IDS = np.array([7], np.int64)


class OneNumber(torch.nn.Module):
    """A parameter, or an embedding's row, of one number that starts at 1."""

    def __init__(self) -> None:
        super().__init__()
        if args.kind == "dense":
            self.w = torch.nn.Parameter(torch.ones(1))
        else:
            self.row = fleet.nn.Embedding(0, 1, initializer=fleet.nn.constant(1.0))

    def forward(self, factor: torch.Tensor) -> torch.Tensor:
        w = self.w if args.kind == "dense" else self.row(torch.from_numpy(IDS)).flatten()
        return factor * w


fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    raise SystemExit(0)

strategy = fleet.DistributedStrategy()
strategy.a_sync = True
strategy.a_sync_configs = {"k_steps": 1, "geo_merge": args.merge}
model = fleet.distributed_model(OneNumber())
optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=1.0), strategy)
fleet.init_worker()
said: dict[str, list[float]] = {"current": [], "served": []}


def current() -> float:
    with torch.no_grad():
        return float(model.eval()(torch.ones(1)).item())


def served() -> float:
    """Return what the servers hold, asked beside the replica."""
    job = session.job
    if job is None:
        return current()
    if args.kind == "dense":
        blocks = [block for block, _ in optimizer.tables.dense]
        return float(pull_dense(job, blocks)[0][0])
    unique, _, offsets = partition(IDS, job.placement.num_shards)
    plan = ReadPlan([Read(table="row", rows=RowIds(unique, offsets), dim=1)], job.placement)
    messages = plan.messages(rank=job.author.rank, min_step=0)
    answers = job.communicator.wait(job.pservers.call("pull", messages))
    return float(plan.join(answers)[0][0, 0])


def move(by: float) -> None:
    """Let the optimizer move the number, and wait for the exchange of that step."""
    optimizer.minimize(model.train()(torch.tensor([-by])).sum())
    optimizer.wait_exchanged()
    note()


def note() -> None:
    said["current"].append(current())
    said["served"].append(served())


rank, size = fleet.worker_index(), fleet.worker_num()
if rank == size - 1 and size > 1:
    move(0.6)
fleet.barrier_worker()
if rank == 0:
    for by in (0.4, 0.0, 0.0):
        move(by)
fleet.barrier_worker()
fleet.finish_training()
note()
fleet.stop_worker()
print(json.dumps({**said, "last": current()}))
