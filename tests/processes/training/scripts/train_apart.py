"""Train a small network by LocalSGD over the servers; say what was learned, and by whom."""

import argparse
import json
import time
from pathlib import Path

import torch

import paramfleet as fleet

parser = argparse.ArgumentParser()
parser.add_argument("--flag", default="localsgd")
parser.add_argument("--configs", type=json.loads, default={})
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--in_turn", type=int, default=0, help="so many steps, then the next")
parser.add_argument("--held", type=int, default=-1, help="this rank waits half way")
parser.add_argument("--until", default="", help="for this file; without a rank all train on")
args = parser.parse_args()

torch.manual_seed(7)
fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    raise SystemExit(0)

strategy = fleet.DistributedStrategy()
strategy.a_sync = True
setattr(strategy, args.flag, True)
setattr(strategy, f"{args.flag}_configs", args.configs)
rank = fleet.worker_index()
last = torch.nn.Linear(7, 1)
model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), last)
if args.until and args.held < 0:
    torch.nn.init.constant_(last.bias, float(rank))  # who begins alone is seen
model = fleet.distributed_model(model)
inner = torch.optim.SGD(model.parameters(), lr=0.05)
optimizer = fleet.distributed_optimizer(inner, strategy)
fleet.init_worker()


def values() -> list[float]:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def enough() -> bool:
    return Path(args.until).exists()


def train(steps: int) -> None:
    for _ in range(steps):
        x = torch.randn(16, 5, generator=data)
        loss = torch.nn.functional.mse_loss(model(x).squeeze(1), x.sum(1))
        optimizer.minimize(loss)
        losses.append(float(loss))


data = torch.Generator().manual_seed(rank)
losses: list[float] = []
began = values()
print(f"began with {last.bias.item():.6f}", flush=True)
if args.in_turn:
    fleet.barrier_worker()  # nobody has exchanged before all have taken the first values
    for _ in range(0, args.steps, args.in_turn):
        for turn in range(fleet.worker_num()):
            if turn == rank:
                train(args.in_turn)
                optimizer.wait_exchanged()
            fleet.barrier_worker()
elif args.held >= 0:
    train(args.steps // 2)
    while args.held == rank and not enough():
        time.sleep(0.01)  # noqa: TID251 - between two looks
    train(args.steps - args.steps // 2)
elif args.until:
    while not enough():
        train(5)
        print(f"trained {optimizer.num_steps} as {rank}", flush=True)
        time.sleep(0.005)  # noqa: TID251 - leaves the cores to the other processes
else:
    train(args.steps)
print(f"took its last step as {rank}", flush=True)
fleet.finish_training()
ledger = optimizer.ledger
result = {
    "began": began,
    "values": values(),
    "losses": losses[-5:],
    "ledger": None if ledger is None else ledger.as_json(),
    "facts": fleet.job_progress(),
}
fleet.stop_worker()
print(json.dumps(result))
