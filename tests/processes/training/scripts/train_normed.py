"""Train a network with BatchNorm on this worker's own data; tell its buffers and outputs."""

import argparse
import json
import time
from pathlib import Path

import torch
from typing_extensions import override

import paramfleet as fleet

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="sync")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--save", default="")
parser.add_argument("--save_early", default="", help="by worker 0, before the training ends")
parser.add_argument("--load", default="")
parser.add_argument("--server_load", default="")
parser.add_argument("--inference", default="")
parser.add_argument("--queue", type=int, default=0, help="floats of a buffer that changes")
parser.add_argument("--until", default="", help="worker 1 waits for this file at the end")
parser.add_argument("--average", action="store_true", help="before the training ends")
args = parser.parse_args()


class Normed(torch.nn.Module):
    """Inputs whose scale differs by worker go through BatchNorm; it counts its examples."""

    queue: torch.Tensor

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        self.last = torch.nn.Linear(4, 1)
        self.seen = 0
        self.register_buffer("drawn", torch.randn(3, generator=seeded(rank)))
        self.register_buffer("queue", torch.zeros(args.queue))
        self.register_buffer("scratch", torch.full((2,), float(rank)), persistent=False)

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += len(x)
            self.queue += 1 + fleet.worker_index()
        found: torch.Tensor = self.last(self.norm(x))
        return found

    @override
    def get_extra_state(self) -> dict[str, int]:
        return {"seen": self.seen}

    @override
    def set_extra_state(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


def seeded(seed: int) -> torch.Generator:
    """Return a generator of a worker's own numbers."""
    return torch.Generator().manual_seed(seed)


def told(model: Normed) -> dict[str, list[float]]:
    """Return the buffers, and what the network makes of the same inputs."""
    found = {name: value.flatten()[:8].tolist() for name, value in model.named_buffers()}
    model.eval()
    with torch.no_grad():
        found["outputs"] = model(torch.randn(8, 4, generator=seeded(99))).flatten().tolist()
    model.train()
    return {**found, "seen": [float(model.seen)]}


fleet.init()
if fleet.is_server():
    fleet.init_server(args.server_load or None)
    fleet.run_server()
    raise SystemExit(0)

rank = fleet.worker_index()
strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode != "sync"
if args.mode == "geo":
    strategy.a_sync_configs = {"k_steps": 4}
if args.mode == "localsgd":
    strategy.localsgd = True
    strategy.localsgd_configs = {"k_steps": 4}
torch.manual_seed(0)
model = fleet.distributed_model(Normed(rank))
optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.05), strategy)
fleet.init_worker()
lacking = fleet.load_model(args.load) if args.load else []
began = told(model)
data = seeded(rank)
for _ in range(args.steps):
    x = torch.randn(16, 4, generator=data) * (1 + 3 * rank) + rank
    optimizer.minimize(torch.nn.functional.mse_loss(model(x).squeeze(1), x.sum(1)))
own = told(model)
if args.average:
    fleet.average_buffers()
averaged = told(model)
if args.save_early:
    fleet.save_persistables(args.save_early)
while args.until and rank == 1 and not Path(args.until).exists():
    time.sleep(0.01)  # noqa: TID251 - between two looks
fleet.finish_training()
ended = told(model)
if args.save:
    fleet.save_persistables(args.save)
if args.inference:
    fleet.save_inference_model(args.inference)
fleet.stop_worker()
when = {"began": began, "own": own, "averaged": averaged, "ended": ended}
print(json.dumps({**when, "lacking": lacking}))
