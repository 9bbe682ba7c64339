"""Train with GEO, and print the optimizer states that this worker holds.

``rows``: the states of each id; ``dense``: those of the dense parameters, flat.
"""

import argparse
import json
from typing import Any

import numpy as np
import torch

import paramfleet as fleet
from paramfleet.api.public import session

parser = argparse.ArgumentParser()
parser.add_argument("--optimizer", default="adagrad")
parser.add_argument("--steps", type=int, default=0)
parser.add_argument("--load", default="")
parser.add_argument("--save", default="")
parser.add_argument("--save_running", default="", help="by worker 0, before its last step")
args = parser.parse_args()


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = fleet.nn.Embedding(0, 4, initializer=fleet.nn.uniform(-0.5, 0.5))
        self.head = torch.nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.rows(ids)).squeeze(1)
        return logits


fleet.init()
if fleet.is_server():
    fleet.init_server(args.load or None)
    fleet.run_server()
    raise SystemExit(0)

torch.manual_seed(0)
strategy = fleet.DistributedStrategy()
strategy.a_sync = True
strategy.a_sync_configs = {"k_steps": 2}
model = fleet.distributed_model(Small())
kinds: dict[str, Any] = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.25),
}
optimizer = fleet.distributed_optimizer(kinds[args.optimizer](model.parameters()), strategy)
fleet.init_worker()
rank = fleet.worker_index()
ids = torch.arange(64) % 12 + 8 * rank  # 8 ids for each worker alone, 4 for both
labels = (ids % 3 == 0).float()


def found() -> dict[str, Any]:
    (stepper,) = session.optimizer.running._steppers  # type: ignore[union-attr]
    store, names = stepper.store, list(stepper._first)
    states = np.concatenate([store.column(n)[: store.num_rows] for n in names], axis=1)
    dense = [
        torch.cat([optimizer.inner.state[p][name].flatten() for p in model.head.parameters()])
        for name in names
        if name in optimizer.inner.state[model.head.weight]
    ]
    return {
        "rows": {int(i): row.tolist() for i, row in zip(store.ids(), states, strict=True)},
        "dense": torch.stack(dense).tolist() if dense else [],
        "steps": stepper._num_steps,
    }


for step in range(args.steps):
    if args.save_running and step == args.steps - 1 and rank == 0:
        fleet.save_persistables(args.save_running)
    optimizer.minimize(torch.nn.functional.mse_loss(model(ids), labels))
fleet.finish_training()
own = found()
if args.save and fleet.is_first_worker():
    fleet.save_persistables(args.save)
fleet.stop_worker()
print(json.dumps(own))
