"""Train rows and dense layers in passes, or in sync; print what the pservers hold at the end.

Batches are the same in every run. One table is used by two modules, and one in half of the
batches alone.
"""

import argparse
import hashlib
import json
import logging
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file

import paramfleet as fleet

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="gpubox")
parser.add_argument("--optimizer", default="adagrad")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--budget", type=int, default=0, help="bytes; 0 for no limit")
parser.add_argument("--watch", action="store_true", help="see the ids in the first batch")
parser.add_argument(
    "--between", default="", help="scores, removes or shrinks: between two loops"
)
parser.add_argument("--asks", action="store_true", help="go on until an operator ends it")
parser.add_argument("--save", default="", help="a folder for the checkpoint at the end")
parser.add_argument("--ids", type=int, default=200, help="different ids there are")
parser.add_argument(
    "--shared", action="store_true", help="half of a batch's ids is every one's"
)
parser.add_argument("--zipf", type=float, default=0, help="exponent of the ids' distribution")
parser.add_argument("--fewer", type=int, default=0, help="batches that rank 1 doesn't have")
parser.add_argument("--shorter", type=int, default=0, help="epochs that rank 1 doesn't take")
parser.add_argument("--leaves", type=int, default=0, help="batches before rank 1's loop ends")
parser.add_argument("--poisons", action="store_true", help="rank 1 leaves with NaN gradients")
parser.add_argument("--halved", type=int, default=0, help="last batches that are half as long")
parser.add_argument("--device", default="cpu")
parser.add_argument("--entry", type=int, default=0, help="uses that the items' ids need")
parser.add_argument("--chance", type=float, default=0, help="share of rare ids with a row")
parser.add_argument("--evicts", type=json.loads, default={}, help="eviction_configs")
parser.add_argument("--accessor", default="", help="a sparse rule, for all rows")
args = parser.parse_args()


def groups(parameters: Any) -> list[dict[str, Any]]:
    """Rows without weight decay, and dense layers with it."""
    rows: list[Any] = []
    dense: list[Any] = []
    for each in parameters:
        (rows if hasattr(each, "_fleet_table") else dense).append(each)
    return [{"params": rows, "weight_decay": 0.0}, {"params": dense, "weight_decay": 0.01}]


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.5),
    "momentum": lambda p: torch.optim.SGD(groups(p), lr=0.1, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "rowwise": lambda p: fleet.optim.RowwiseAdagrad(p, lr=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(groups(p), lr=0.01),
    "ftrl": lambda p: fleet.optim.FTRL(p, lr=0.1, l1=1e-3),
}

fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    raise SystemExit(0)

torch.manual_seed(0)
strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode == "gpubox"
if args.mode == "gpubox":
    strategy.a_sync_configs = {"use_ps_gpu": 1}
strategy.eviction_configs = args.evicts


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        uniform = fleet.nn.uniform(-0.1, 0.1)
        kept: dict[str, Any] = {"initializer": uniform}
        if args.accessor:
            rule = fleet.nn.SparseRule(args.accessor, learning_rate="optimizer")
            kept["accessor"] = fleet.nn.CtrAccessor(
                embed=rule, embedx=rule, embedx_threshold=0.3
            )
        if args.entry:
            kept["entry"] = fleet.nn.CountFilterEntry(args.entry)
        chance = fleet.nn.ProbabilityEntry(args.chance) if args.chance else None
        self.items = fleet.nn.Embedding(0, 4, name="items", **kept)
        self.seen = fleet.nn.EmbeddingBag(0, 4, name="items", **kept, mode="sum")
        self.rare = fleet.nn.Embedding(0, 3, name="rare", entry=chance)
        self.out = torch.nn.Linear(8, 1)

    def forward(self, item: torch.Tensor, seen: torch.Tensor, rare: Any) -> torch.Tensor:
        logits: torch.Tensor = self.out(torch.cat([self.items(item), self.seen(seen)], 1))
        if rare is not None:
            logits = logits + self.rare(rare).sum(1, keepdim=True)
        return logits.squeeze(1)


model = fleet.distributed_model(Model().to(args.device))
optimizer = fleet.distributed_optimizer(
    OPTIMIZERS[args.optimizer](model.parameters()), strategy
)
fleet.init_worker()

rank, size = fleet.worker_index(), fleet.worker_num()
mine = slice(rank * 16 // size, (rank + 1) * 16 // size)
data = np.random.default_rng(1)
zipf = np.cumsum(np.arange(1.0, args.ids + 1) ** -args.zipf)
zipf /= zipf[-1]
batches = []
for number in range(args.steps):
    draw = data.integers(0, args.ids, (16, 5))
    if args.zipf:
        draw = np.searchsorted(zipf, data.random((16, 5)))
    if args.shared:  # the other half is of this batch alone
        draw = draw % 40 + np.where(draw % 2, 0, 1000 * (1 + number))
    ids = torch.from_numpy(draw.astype(np.int64))
    rare = ids[:, 4] % 31 if number % 2 else None
    batch = (ids[:, 0], ids[:, 1:4], rare, (ids.sum(1) % 3 == 0).float())
    where = mine if number < args.steps - args.halved else slice(0, 8)
    parts = (None if part is None else part[where].to(args.device) for part in batch)
    batches.append(tuple(parts))
batches = batches[: args.steps - rank * args.fewer]


def ids_of(batch: Any) -> dict[str, torch.Tensor]:
    found = {"items": batch[0], "seen": batch[1]}
    return found if batch[2] is None else {**found, "rare": batch[2]}


class Passes(logging.Handler):
    """Prints the facts of each pass that is logged."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == "worker.device_pass":
            names = ("rows", "stayed", "hit_share", "device_bytes")
            print("pass", json.dumps({name: vars(record)[name] for name in names}))


passes_log = logging.getLogger("paramfleet.training.passes.running")
passes_log.setLevel(logging.INFO)
passes_log.addHandler(Passes())

losses = []
epochs = range(10_000 if args.asks else args.epochs - rank * args.shorter)
for _ in epochs:
    if args.asks and fleet.should_stop():
        break
    source: Any = batches
    if args.mode == "gpubox":
        known: dict[str, Any] = {} if args.watch else {"ids": ids_of}
        source = fleet.device_pass(batches, model, device_budget=args.budget or None, **known)
    for number, (item, seen, rare, label) in enumerate(source):
        if rank == 1 and args.leaves and number == args.leaves:
            if args.poisons:
                (model(item, seen, rare).sum() * torch.nan).backward()
            break
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            model(item, seen, rare), label
        )
        optimizer.minimize(loss)
        losses.append(loss.item())
    print("an epoch ended", flush=True)
    if args.between == "removes":
        fleet.remove_rows(model.items, torch.arange(0, 200, 3))
    elif args.between == "shrinks":
        gone = fleet.shrink() if rank == 0 or args.mode == "sync" else {}
        print("shrunk", json.dumps(gone))
    elif args.between == "scores":  # a pass in training mode that takes no step
        for scored in fleet.device_pass(batches, model, ids=ids_of):
            model(*scored[:3])

folder = args.save or "passes-checkpoint"
fleet.save_persistables(folder)
hashes: dict[str, str] = {}
values: dict[str, Any] = {}
if fleet.is_first_worker():
    from pathlib import Path

    for name in ("items", "rare"):
        found = fleet.load_rows(folder, name)
        order = np.argsort(found.ids)
        values[name] = [found.ids[order].tolist(), found.rows[order].tolist()]
    rows: dict[str, list[tuple[int, bytes]]] = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        tensors = load_file(path)
        if "ids" in tensors:
            columns = [tensors[name] for name in sorted(tensors) if name != "ids"]
            width = {column.shape[1] for column in columns}
            for place, number in enumerate(tensors["ids"].tolist()):
                row = b"".join(column[place].tobytes() for column in columns)
                rows.setdefault(str(sorted(width)), []).append((number, row))
        else:
            for name in sorted(tensors):
                hashes[f"{path.name}/{name}"] = hashlib.sha256(
                    tensors[name].tobytes()
                ).hexdigest()[:16]
    for name, held in rows.items():
        whole = b"".join(row for _, row in sorted(held))
        hashes[name] = hashlib.sha256(whole).hexdigest()[:16]
dense = [value for p in model.out.parameters() for value in p.detach().flatten().tolist()]
fleet.stop_worker()
print(json.dumps({"losses": losses, "dense": dense, "hashes": hashes, "values": values}))
