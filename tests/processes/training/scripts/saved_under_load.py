"""Train while checkpoints are written, or take the next steps of one; prints the losses.

With ``--load`` worker 0 saves again what was loaded, before it steps.
"""

import argparse
import json
import time
from pathlib import Path

import torch

import paramfleet as fleet

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="async")
parser.add_argument("--until", default="", help="end when this file is there")
parser.add_argument("--kept", default="", help="folder of checkpoints by steps")
parser.add_argument("--load", default="")
parser.add_argument("--again", default="", help="where what was loaded is saved")
args = parser.parse_args()

LONGEST_S = 300.0

fleet.init()
if fleet.is_server():
    fleet.init_server(args.load or None)
    fleet.run_server()
    raise SystemExit(0)

torch.manual_seed(0)
rank = fleet.worker_index()
strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode != "sync"
if args.mode == "geo":
    strategy.a_sync_configs = {"k_steps": 4}
if args.kept:
    strategy.checkpoint_configs = {"every_steps": 20, "dir": args.kept, "incremental": 2}
model = torch.nn.Sequential(
    fleet.nn.Embedding(0, 4, name="ids"), torch.nn.Flatten(), torch.nn.Linear(32, 1)
)
model = fleet.distributed_model(model)
optimizer = fleet.distributed_optimizer(
    torch.optim.Adagrad(model.parameters(), lr=0.05), strategy
)
fleet.init_worker()
chance = torch.Generator().manual_seed(rank)
losses: list[float] = []


def step(num_ids: int) -> None:
    ids = torch.randint(num_ids, (16, 8), generator=chance)
    loss = (model(ids) - 1).square().mean()
    losses.append(float(loss.detach()))
    optimizer.minimize(loss)


if args.load:
    if args.again and fleet.is_first_worker():
        fleet.save_persistables(args.again)
    for _ in range(6):
        step(900)
else:
    end, count = time.monotonic() + LONGEST_S, 0  # noqa: TID251 - ends whatever happens
    while not Path(args.until).exists() and time.monotonic() < end:  # noqa: TID251 - the same
        count += 1
        if count == 3:
            print("training", flush=True)
        step(min(3000, 30 * count))  # new rows come all the time
        if args.mode == "async" and count % 10 == 0 and fleet.is_first_worker():
            fleet.remove_rows("ids", torch.arange(count, count + 3))
fleet.stop_worker()
print(json.dumps({"losses": losses}))
