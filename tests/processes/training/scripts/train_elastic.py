"""Train until a file says that it is enough; say how far, and what is held in the end."""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

import paramfleet as fleet
from paramfleet.api.public import session
from paramfleet.transport.requests import Read, ReadPlan
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.rows.batch import RowIds

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="async")
parser.add_argument("--until", required=True, help="end when this file is there")
parser.add_argument("--raise_if", default="", help="worker 0 raises when this file is there")
args = parser.parse_args()
IDS = np.arange(500, dtype=np.int64)


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.deep = fleet.nn.Embedding(0, 4)
        self.out = torch.nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out(self.deep(ids)).squeeze(1)
        return logits


fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    raise SystemExit(0)

rank = fleet.worker_index()
strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode != "sync"
if args.mode == "geo":
    strategy.a_sync_configs = {"k_steps": 5}
if args.mode == "async":
    strategy.a_sync_configs = {"max_staleness": 200}
model = fleet.distributed_model(Small())
optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.01), strategy)
fleet.init_worker()


def served() -> np.ndarray:
    """Return the pservers' rows."""
    job = session.job
    assert job is not None
    unique, _, offsets = partition(IDS, job.placement.num_shards)
    plan = ReadPlan([Read(table="deep", rows=RowIds(unique, offsets), dim=4)], job.placement)
    pulling = job.pservers.pull(plan, rank=rank, min_step=0)
    rows = np.empty((len(IDS), 4), np.float32)
    rows[unique] = plan.join(job.communicator.wait(pulling))[0]
    return rows


data = torch.Generator().manual_seed(rank)
step = 0
while not Path(args.until).exists():
    ids = torch.randint(100 * rank, 100 * rank + 100, (16,), generator=data)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(ids), (ids % 2).float())
    optimizer.minimize(loss)
    step += 1
    time.sleep(0.01)  # noqa: TID251 - leaves the cores to the other processes of the test
    if step % 20 == 0:
        print(f"trained {step} as {rank} of {fleet.worker_num()}", flush=True)
    if rank == 0 and args.raise_if and Path(args.raise_if).exists():
        raise ZeroDivisionError("the script's own mistake")
fleet.finish_training()
with torch.no_grad():
    held = model.eval().deep(torch.from_numpy(IDS)).numpy()
dense = torch.cat([parameter.flatten() for parameter in model.out.parameters()])
difference = float(np.abs(held - served()).max())
fleet.stop_worker()
result = {
    "rank": rank,
    "difference": difference,
    "rows": held.tolist(),
    "dense": dense.tolist(),
}
print(json.dumps(result))
