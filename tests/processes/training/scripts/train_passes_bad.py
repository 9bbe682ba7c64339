"""Train three passes of rows with one mistake in the second; print what was told, and the end.

A pass that is refused is trained anew.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import paramfleet as fleet
from paramfleet.tables.device.dense import DenseOnDevice
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.errors import FleetError

parser = argparse.ArgumentParser()
MISTAKES = ["", "outside", "inside", "stranger", "with", "half"]
parser.add_argument("--mistake", default="", choices=MISTAKES)
parser.add_argument("--wait", default="", help="a file: the second pass ends once it exists")
parser.add_argument("--full", default="", help="a file: the last pserver is full if it exists")
args = parser.parse_args()

fleet.init()
if fleet.is_server():
    fleet.init_server()
    if args.full and fleet.server_index() == fleet.server_num() - 1:
        check_memory = TableStore.check_memory

        def check_less(self: TableStore, *given: Any) -> None:
            share = 0.001 if Path(args.full).exists() else 0.9
            self._limits = replace(self._limits, memory_share=share)
            check_memory(self, *given)

        TableStore.check_memory = check_less  # type: ignore[assignment,method-assign]
    fleet.run_server()
    raise SystemExit(0)

torch.manual_seed(0)
strategy = fleet.DistributedStrategy()
strategy.a_sync = True
strategy.a_sync_configs = {"use_ps_gpu": 1}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = fleet.nn.Embedding(0, 4, name="items")
        self.out = torch.nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out(self.items(ids)).squeeze(1)
        return logits


model = fleet.distributed_model(Model())
optimizer = fleet.distributed_optimizer(
    torch.optim.Adagrad(model.parameters(), lr=0.1), strategy
)
fleet.init_worker()
data = np.random.default_rng(1)
batches = [torch.from_numpy(data.integers(0, 100, 16)) for _ in range(4)]


def tell(work: Any, *given: Any) -> None:
    """Print the error that a call must raise."""
    try:
        work(*given)
    except FleetError as error:
        print(f"told {type(error).__name__}: {error}", flush=True)
    else:
        print("told nothing", flush=True)


def step(ids: torch.Tensor) -> None:
    loss = (model(ids) - 1.0).square().mean()
    optimizer.minimize(loss)


def lookup_of_strangers() -> None:
    model(torch.tensor([3, 12345]))


def train(number: int) -> None:
    for place, ids in enumerate(
        fleet.device_pass(batches, model, ids=lambda ids: {"items": ids})
    ):
        step(ids)
        if number != 1 or place != 1:
            continue
        if args.mistake == "inside":
            tell(fleet.save_persistables, "checkpoint-that-is-not-written")
            tell(fleet.load_model, "checkpoint-that-is-not-there")
            tell(fleet.remove_rows, "items", torch.tensor([1]))
            tell(next, iter(fleet.device_pass(batches, model)))
        elif args.mistake == "stranger":
            tell(lookup_of_strangers)
        if args.wait:
            print("waits", flush=True)
            while not Path(args.wait).exists():
                time.sleep(0.02)  # noqa: TID251 -- for the test


class OwnError(Exception):
    """The script's own."""


def fail_in(block: str) -> None:
    """Raise in the second batch of a pass, in a ``with`` or in the middle of a step.

    Raises:
        OwnError: never: it is caught here.
    """
    begun = torch.cat([p.detach().flatten() for p in model.out.parameters()])
    passes = fleet.device_pass(batches, model, ids=lambda ids: {"items": ids})
    try:
        if block == "with":
            with passes as loader:
                for place, ids in enumerate(loader):
                    step(ids)
                    if place == 1:
                        raise OwnError  # noqa: TRY301 -- of the loop's body
        else:
            with mock.patch.object(DenseOnDevice, "step", side_effect=OwnError):
                for ids in passes:
                    step(ids)
    except OwnError:
        optimizer.zero_grad()
        now = torch.cat([p.detach().flatten() for p in model.out.parameters()])
        print(f"failed in {block}, dense as before: {torch.equal(now, begun)}", flush=True)


for number in range(3):
    if number == 1 and args.mistake in {"with", "half"}:
        fail_in(args.mistake)
    if number == 1 and args.mistake == "outside":
        tell(step, batches[0])
    try:
        train(number)
    except FleetError as error:
        print(f"refused {type(error).__name__}: {error}", flush=True)
        model.eval()
        with torch.no_grad():
            print(f"held {model(torch.arange(100)).tolist()}", flush=True)
        model.train()
        args.wait = ""
        Path(args.full or "nothing").unlink(missing_ok=True)
        train(number)

model.eval()
with torch.no_grad():
    print(json.dumps({"scores": model(torch.arange(100)).tolist()}), flush=True)
fleet.stop_worker()
