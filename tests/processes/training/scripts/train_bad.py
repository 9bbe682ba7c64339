"""Make one mistake of many, and say what came of it."""

import argparse

import torch

import paramfleet as fleet
from paramfleet.training.modes.base import GradientError, LearningRateError

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="sync")
parser.add_argument("--nan", default="", help="where worker 1's gradient is NaN in step 3")
parser.add_argument("--bad_rate", action="store_true", help="worker 1's is NaN in step 3")
parser.add_argument("--dim_of_1", type=int, default=4, help="worker 1's row width")
parser.add_argument("--out_of_1", type=int, default=1, help="worker 1's dense width")
parser.add_argument("--uncaught", action="store_true", help="let the refusal end worker 1")
parser.add_argument("--mark", help="by which a test finds this process")
args = parser.parse_args()


class Small(torch.nn.Module):
    def __init__(self, dim: int, out: int) -> None:
        super().__init__()
        self.deep = fleet.nn.Embedding(0, dim)
        self.out = torch.nn.Linear(dim, out)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        summed: torch.Tensor = self.out(self.deep(ids)).sum(1)
        return summed


fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    raise SystemExit(0)

rank = fleet.worker_index()
strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode != "sync"
if args.mode == "geo":
    strategy.a_sync_configs = {"k_steps": 1}
odd = rank == 1
model = fleet.distributed_model(Small(args.dim_of_1 if odd else 4, args.out_of_1 if odd else 1))
inner = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))
optimizer = fleet.distributed_optimizer(inner, strategy)
fleet.init_worker()
ids = torch.arange(8)


def held() -> list[float]:
    """Return everything that this worker sees: rows and dense parameters."""
    with torch.no_grad():
        model.eval()
        rows = model.deep(ids).flatten()
        model.train()
    dense = [parameter.flatten() for parameter in model.out.parameters()]
    values: list[float] = torch.cat([rows, *dense]).tolist()
    return values


def poison() -> None:
    """Make one number of a gradient NaN, where it was asked for."""
    gradient = model.deep.weight.grad if args.nan == "row" else model.out.weight.grad
    assert gradient is not None
    gradient[0, 0] = float("nan")


for step in range(5):
    fleet.barrier_worker()
    if step == 3 and odd and (args.nan or args.bad_rate):
        optimizer.wait_exchanged()
        model(ids).sum().backward()
        before = held()
        if args.nan:
            poison()
        else:
            inner.param_groups[0]["lr"] = float("nan")
        try:
            optimizer.step()
        except (GradientError, LearningRateError) as error:
            if args.uncaught:
                raise
            print(f"refused: {error}", flush=True)
        optimizer.zero_grad()
        inner.param_groups[0]["lr"] = 0.1
        print(f"unchanged: {before == held()}", flush=True)
    optimizer.minimize(model(ids).sum())
fleet.finish_training()
print(f"held {held()}", flush=True)
fleet.stop_worker()
