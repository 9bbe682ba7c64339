"""Train rows that begin with given values, and write some on the way; print what they are.

Torch is trained the same way with ``--mode torch``.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import paramfleet as fleet
from paramfleet.training.modes.sync import WriteNotSharedError
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.errors import FleetError

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="sync")
parser.add_argument("--optimizer", default="adagrad")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--every", type=int, default=3, help="steps between two writes")
parser.add_argument("--what", default="clamp", help="clamp, all or one: who writes what")
parser.add_argument("--wrong", action="store_true", help="rank 0 writes once more, alone")
parser.add_argument("--prefetch", action="store_true")
parser.add_argument("--full", default="", help="a file: pservers are full while it exists")
parser.add_argument("--until", default="", help="train on until this file is there")
parser.add_argument("--storage", default="float32")
args = parser.parse_args()

NUM_IDS, DIM, BATCH, LIMIT = 60, 4, 24, 0.15
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}
ALL = np.arange(NUM_IDS)
random = np.random.default_rng(3)
FIRST = random.normal(0, 0.1, (NUM_IDS, DIM)).astype(np.float32)
GIVEN = random.normal(0, 0.1, (NUM_IDS, DIM)).astype(np.float32)

if args.mode != "torch":
    fleet.init()
    if fleet.is_server():
        fleet.init_server()
        if args.full:
            check_memory = TableStore.check_memory

            def check_less(self: TableStore, *given: Any) -> None:
                share = 0.001 if Path(args.full).exists() else 0.9
                self._limits = replace(self._limits, memory_share=share)
                check_memory(self, *given)

            TableStore.check_memory = check_less  # type: ignore[assignment,method-assign]
        fleet.run_server()
        raise SystemExit(0)
is_torch = args.mode == "torch"
rank, size = (0, 1) if is_torch else (fleet.worker_index(), fleet.worker_num())
strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode not in {"sync", "alone"}
if args.mode == "gpubox":
    strategy.a_sync_configs = {"use_ps_gpu": 1}
elif args.mode == "geo":
    strategy.a_sync_configs = {"k_steps": 2}
elif args.mode == "async":
    strategy.a_sync_configs = {"fresh_steps": 1000}  # with one worker as torch computes


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        kept: dict[str, Any] = {} if is_torch else {"storage": args.storage}
        module: Any = torch.nn if is_torch else fleet.nn
        self.rows = module.Embedding(NUM_IDS, DIM, **kept)
        torch.manual_seed(0)
        self.out = torch.nn.Linear(3 * DIM, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out(self.rows(ids).flatten(1)).squeeze(1)
        return logits


model: Any = Model()
if is_torch:
    model.rows.weight.data.copy_(torch.from_numpy(FIRST))
    optimizer = OPTIMIZERS[args.optimizer](model.parameters())
else:
    half = NUM_IDS // 2
    model.rows.table.first_rows += [(ALL[:half], FIRST[:half]), (ALL[half:], FIRST[half:])]
    model = fleet.distributed_model(model)
    optimizer = fleet.distributed_optimizer(
        OPTIMIZERS[args.optimizer](model.parameters()), strategy
    )
    fleet.init_worker()
data = torch.Generator().manual_seed(1)


def batches(number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for _ in range(number):
        ids = torch.randint(0, NUM_IDS, (BATCH, 3), generator=data)
        label = ((ids % 7).sum(1) > 9).float()
        mine = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
        yield ids[mine], label[mine]


def held() -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        rows: torch.Tensor = model.rows(torch.arange(NUM_IDS)).clone()
    model.train()
    return rows


def write(ids: np.ndarray, values: np.ndarray) -> None:
    if is_torch:
        model.rows.weight.data[torch.from_numpy(ids)] = torch.from_numpy(values)
    else:
        optimizer.write_rows(model.rows.table, ids, values)


def train(some: Any) -> None:
    if args.mode == "gpubox":
        some = fleet.device_pass(list(some), model, ids=lambda batch: {"rows": batch[0]})
    elif args.prefetch:
        some = fleet.prefetch(some, model)
    for ids, label in some:
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(ids), label)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        optimizer.zero_grad()


began = held().flatten().tolist()
print("has begun", flush=True)
problem = ""
for turn in range(args.steps // args.every):
    train(batches(args.every))
    if args.what == "clamp":
        write(ALL[::-1].copy(), held().clamp(-LIMIT, LIMIT).numpy()[::-1].copy())
        print(f"step {(turn + 1) * args.every}.", flush=True)
    if args.full and turn == 1:
        fleet.barrier_worker()
        if rank == 0:
            Path(args.full).touch()
        fleet.barrier_worker()
        many = np.arange(10**6, 4 * 10**6)  # more than room is promised for
        try:
            write(many, np.ones((len(many), DIM), np.float32))
        except FleetError as error:
            problem = f"{type(error).__name__}: {error}"
        fleet.barrier_worker()
        Path(args.full).unlink(missing_ok=True)
    if args.wrong and turn == 1 and rank == 0:
        try:
            write(ALL[:5], GIVEN[:5])
        except WriteNotSharedError as error:
            problem = str(error)
while args.until and not Path(args.until).exists():
    train(batches(2))
written: list[float] = []
if args.what != "clamp":
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    fleet.util.barrier()
    if args.what == "all" or rank == 0:
        write(ALL, GIVEN)
        written = held().flatten().tolist()
    fleet.util.barrier()
    train(batches(4))  # which change nothing, and let GEO exchange
if not is_torch:
    fleet.finish_training()
facts = {"began": began, "written": written, "rows": held().flatten().tolist()}
facts["dense"] = torch.cat([each.flatten() for each in model.out.parameters()]).tolist()
print(json.dumps({"rank": rank, **facts, "problem": problem}), flush=True)
if not is_torch:
    fleet.stop_worker()
