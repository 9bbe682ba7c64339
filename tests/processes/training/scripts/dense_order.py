"""Train two towers under an optimizer of some order, load checkpoints, and print what came.

``loads``: of each folder the error, if it was refused, and whether values stayed as they were;
``answers`` and ``dense`` at the end, ``steps`` that were taken.
"""

import argparse
import json
from typing import Any

import torch

import paramfleet as fleet

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="sync")
parser.add_argument("--order", default="one")
parser.add_argument("--wide", action="store_true", help="a tower of another shape")
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--more", type=int, default=0, help="steps after the loads")
parser.add_argument("--save", default="")
parser.add_argument("--server_load", default="")
parser.add_argument("folders", nargs="*")
args = parser.parse_args()


class Towers(torch.nn.Module):
    """Swapped, the two answer something else."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = None if args.mode == "localsgd" else fleet.nn.Embedding(0, 2)
        self.a = torch.nn.Linear(2, 2)
        self.b = torch.nn.Linear(2, 3 if args.wide else 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = torch.stack([(ids * k).float().sin() for k in (1, 2)], 1)
        if self.rows is not None:
            x = x + self.rows(ids)
        found: torch.Tensor = self.a(x).sum(1) - 2 * self.b(x).sum(1) + 1
        return found


fleet.init()
if fleet.is_server():
    fleet.init_server(args.server_load or None)
    fleet.run_server()
    raise SystemExit(0)

torch.manual_seed(0)
strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode != "sync"
if args.mode == "geo":
    strategy.a_sync_configs = {"k_steps": 2}
if args.mode == "localsgd":
    strategy.localsgd = True
    strategy.localsgd_configs = {"k_steps": 2}
model = fleet.distributed_model(Towers())
e = [] if model.rows is None else list(model.rows.parameters())
a, b = list(model.a.parameters()), list(model.b.parameters())


def ada(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(parameters, lr=0.1)


def ftrl(parameters: Any) -> torch.optim.Optimizer:
    return fleet.optim.FTRL(parameters, lr=0.1)


orders: dict[str, Any] = {
    "one": lambda: ada(e + a + b),
    "other": lambda: ada(e + b + a),
    "groups": lambda: ada([{"params": e + a}, {"params": b}]),
    "other_groups": lambda: ada([{"params": e + b}, {"params": a}]),
    "list": lambda: [ada(e + a), ada(b)],
    "other_list": lambda: [ada(b), ada(e + a)],
    "ftrl": lambda: [ftrl(e), ada(a + b)],
}
optimizer = fleet.distributed_optimizer(orders[args.order](), strategy)
fleet.init_worker()
ids = torch.arange(12) % 9


def train(steps: int) -> None:
    for _ in range(steps):
        optimizer.minimize(model(ids).pow(2).mean())


def held() -> dict[str, Any]:
    model.eval()
    with torch.no_grad():
        answers = model(ids).tolist()
    model.train()
    return {"answers": answers, "dense": [p.tolist() for p in (*a, *b)]}


train(args.steps)
loads = []
for folder in args.folders:
    before = held()["dense"]
    error = []
    try:
        fleet.load_model(folder)
    except Exception as failure:  # noqa: BLE001 - as a script that goes on after all
        error = [type(failure).__name__, str(failure)]
    loads.append({"error": error, "same": held()["dense"] == before})
train(args.more)
fleet.finish_training()
if args.save:
    fleet.save_persistables(args.save)
found = held()
fleet.stop_worker()
print(json.dumps({"loads": loads, **found, "steps": optimizer.num_steps}))
