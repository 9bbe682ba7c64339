"""Trains with Adam, dropout, a schedule and a registered dataset; says what it has computed.

Killed at any point and started again, it ends with the same numbers: ``--dies`` has it kill
itself with SIGKILL, once for each entry, at a point named as ``rank:step:where``.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import paramfleet as fleet

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="sync")
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--dies", nargs="*", default=[])
parser.add_argument("--marks", default=".")
parser.add_argument("--always", action="store_true", help="die there each time")
parser.add_argument("--on_loss", default="wait")
parser.add_argument("--max_staleness", type=int)
parser.add_argument("--barrier_every", type=int, default=0)
parser.add_argument(
    "--clamps", default="", help="before or after: first rows, and a write in each step"
)
parser.add_argument("--clip", action="store_true", help="by the norm of all gradients")
parser.add_argument("--raises", type=int, default=-1)
args = parser.parse_args()


class Numbers:
    """Batches of ids; it knows where it is."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.place = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.place < args.steps:
            self.place += 1
            generator = torch.Generator().manual_seed(1000 * self.rank + self.place)
            yield torch.randint(0, 60, (16,), generator=generator)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows: torch.nn.Module = fleet.nn.Embedding(0, 8)
        if args.mode == "localsgd":
            self.rows = torch.nn.Embedding(60, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.top = torch.nn.Linear(8, 1)
        self.drop = torch.nn.Dropout(0.25)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.top(self.drop(self.norm(self.rows(ids))))
        return out


def die(where: str) -> None:
    """Kill this process if that was asked for, once."""
    name = f"{rank}:{step}:{where}"
    mark = Path(args.marks) / f"died-{name}"
    if name in args.dies and (args.always or not mark.exists()):
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def clamp() -> None:
    """Write all rows, cut to small values."""
    model.eval()
    with torch.no_grad():
        rows = model.rows(torch.arange(60)).clamp(-0.01, 0.01)
    model.train()
    assert isinstance(model.rows, fleet.nn.Embedding), "it has a table"
    optimizer.write_rows(model.rows.table, np.arange(60), rows.numpy())


print(f"waiting pid={os.getpid()}", file=sys.stderr, flush=True)
fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    raise SystemExit(0)

rank = fleet.worker_index()
torch.manual_seed(7 + rank)
strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode != "sync"
if args.mode == "geo":
    strategy.a_sync_configs = {"k_steps": 2, "fresh_steps": 0}
if args.mode == "async":
    strategy.a_sync_configs = {"fresh_steps": 0}
    if args.max_staleness is not None:
        strategy.a_sync_configs["max_staleness"] = args.max_staleness
if args.mode == "localsgd":
    strategy.diloco = True
    strategy.diloco_configs = {"k_steps": 3}
if args.on_loss != "wait":
    strategy.on_worker_loss = args.on_loss
net = Net()
if args.clamps:
    assert isinstance(net.rows, fleet.nn.Embedding), "it has a table"
    net.rows.table.first_rows += [(np.arange(60), np.full((60, 8), 0.005, np.float32))]
model = fleet.distributed_model(net)
inner = torch.optim.Adam(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.ExponentialLR(inner, 0.99)
optimizer = fleet.distributed_optimizer(inner, strategy)
numbers = Numbers(rank)
fleet.register_for_checkpointing(schedule=schedule, numbers=numbers)
step = -1
die("init")
fleet.init_worker()
begun = optimizer.num_steps
print(f"begins at {begun}", file=sys.stderr, flush=True)
losses = []
for ids in numbers:
    step = optimizer.num_steps
    if args.clamps == "before":
        clamp()
    die("forward")
    loss = ((model(ids).squeeze(-1) - (ids % 5) / 5.0) ** 2).mean()
    loss.backward()
    die("backward")
    if args.clip:
        fleet.clip_grad_norm_(model.parameters(), 0.02, examples=16)
        die("clipped")
    if args.raises == step and rank == 1:
        raise RuntimeError("the script's own")
    optimizer.step(examples=16)
    die("stepped")
    optimizer.zero_grad()
    schedule.step()
    if args.clamps == "after":
        clamp()
    losses.append([step, loss.item()])
    print(f"trained {step}.", file=sys.stderr, flush=True)
    if args.barrier_every and step % args.barrier_every == 1:
        fleet.barrier_worker()
step = args.steps
die("end")
fleet.finish_training()
die("finished")
model.eval()
with torch.no_grad():
    rows = model.rows(torch.arange(60))
found = {
    "rank": rank,
    "begun": begun,
    "losses": losses,
    "rows": rows.tolist(),
    "dense": [p.tolist() for p in (model.top.weight, model.top.bias, model.norm.weight)],
    "buffers": model.norm.running_mean.tolist() if model.norm.running_mean is not None else [],
    "lr": schedule.get_last_lr(),
    "steps": optimizer.num_steps,
}
fleet.stop_worker()
print(json.dumps(found))
