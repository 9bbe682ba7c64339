"""Train a little and save; load checkpoints one after the other, and print the next losses.

Each of the optimizers trains a model of its own, side by side. For each folder and optimizer:
the loss on one batch with the loaded values, and after one step on it.
"""

import argparse
import json
from typing import Any

import torch

import paramfleet as fleet

parser = argparse.ArgumentParser()
parser.add_argument(
    "--mode", default="sync", help="alone is what --mode sync does without a job"
)
parser.add_argument("--optimizers", nargs="+", required=True)
parser.add_argument("--dense", action="store_true", help="without a table of rows")
parser.add_argument("--steps", type=int, default=0)
parser.add_argument("--save", default="")
parser.add_argument("--folders", nargs="*", default=[])
args = parser.parse_args()


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        start = fleet.nn.uniform(-0.5, 0.5)
        self.rows = None if args.dense else fleet.nn.Embedding(0, 4, initializer=start)
        self.head = torch.nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = torch.stack([(ids * k).float().sin() for k in range(1, 5)], 1)
        if self.rows is not None:
            x = x + self.rows(ids)
        logits: torch.Tensor = self.head(x).squeeze(1)
        return logits


KINDS: dict[str, Any] = {
    "adam": torch.optim.Adam,
    "adagrad": torch.optim.Adagrad,
    "rowwise_adagrad": fleet.optim.RowwiseAdagrad,
    "ftrl": fleet.optim.FTRL,
}


class Each(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.towers = torch.nn.ModuleList(Small() for _ in args.optimizers)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.stack([tower(ids) for tower in self.towers])


fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    raise SystemExit(0)

torch.manual_seed(0)
strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode in {"async", "geo"}
if args.mode == "geo":
    strategy.a_sync_configs = {"k_steps": 2}
if args.mode == "localsgd":
    strategy.a_sync = strategy.localsgd = True
    strategy.localsgd_configs = {"k_steps": 2}
model: Any = fleet.distributed_model(Each())
inner = [
    KINDS[name](tower.parameters(), lr=0.1)
    for name, tower in zip(args.optimizers, model.towers, strict=True)
]
optimizer = fleet.distributed_optimizer(inner, strategy)
fleet.init_worker()
ids = torch.arange(64) % 24
labels = (ids % 3 == 0).float()


def losses() -> torch.Tensor:
    """Return the loss of each optimizer's model."""
    return torch.stack(
        [
            torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
            for logits in model(ids)
        ]
    )


for _ in range(args.steps):
    optimizer.minimize(losses().sum())
if args.save:
    fleet.save_persistables(args.save)
found = {}
for folder in args.folders:
    fleet.load_model(folder)
    before = losses()
    optimizer.minimize(before.sum())
    pairs = zip(before.tolist(), losses().tolist(), strict=True)
    found[folder] = dict(zip(args.optimizers, pairs, strict=True))
fleet.stop_worker()
print(json.dumps(found))
