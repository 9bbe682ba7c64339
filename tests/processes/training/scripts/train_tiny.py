"""Train a small dense + sparse model; print every loss as JSON lines."""

import argparse
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

import paramfleet as fleet
from paramfleet.api.public import session
from paramfleet.training.modes.geo import mode as geo
from paramfleet_pserver.core.pulled import PulledIds

parser = argparse.ArgumentParser()
parser.add_argument("--optimizer", default="sgd")
parser.add_argument("--mode", default="sync")
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--k_steps", type=int, default=4)
parser.add_argument("--max_staleness", type=int)
parser.add_argument("--fresh_steps", type=int, default=100)
parser.add_argument("--geo_merge", default="paced")
parser.add_argument("--save", default="")
parser.add_argument("--load", default="")
parser.add_argument("--reload", default="")
parser.add_argument("--server_load", default="")
parser.add_argument("--inference", default="")
parser.add_argument("--skip", type=int, default=0)
parser.add_argument("--uneven", type=int, default=0)
parser.add_argument("--message_values", type=int)
parser.add_argument("--wire_dtype", default="float32")
parser.add_argument("--storage", default="float32")
parser.add_argument("--max_pulls", type=int)
parser.add_argument("--depth", type=int, default=1)
parser.add_argument("--prefetch", default="", help="watch, name, or wrong")
parser.add_argument("--traffic", action="store_true")
parser.add_argument("--device", default="cpu")
parser.add_argument("--accessor", default="", help="a sparse rule, for both tables")
parser.add_argument("--cvm", action="store_true")
parser.add_argument("--days", type=int, default=0, help="of so many steps, with a shrink each")
parser.add_argument("--first_day", type=int, default=0, help="days that were before")
parser.add_argument("--entry", default="", help="count:N or share:P, for both tables")
parser.add_argument(
    "--reader", type=Path, help="folder in which the base (0) and each change are"
)
parser.add_argument("--evict", default="", help="JSON of strategy.eviction_configs")
args = parser.parse_args()

if args.message_values:
    geo._MESSAGE_VALUES = args.message_values

if args.max_pulls is not None:
    defaults = PulledIds.__init__.__kwdefaults__
    assert defaults is not None
    defaults["max_pulls"] = args.max_pulls

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.5),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.0),
    "rowwise_adagrad": lambda p: fleet.optim.RowwiseAdagrad(p, lr=0.1),
    "ftrl": lambda p: fleet.optim.FTRL(p, lr=0.1, l1=1e-4),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "several": lambda p: [
        fleet.optim.FTRL([next(p)], lr=0.1, l1=1e-4),
        torch.optim.Adam(p, lr=0.01),
    ],
}
rule = fleet.nn.SparseRule(args.accessor, learning_rate="optimizer") if args.accessor else None
ACCESSOR = rule and fleet.nn.CtrAccessor(
    show_click_decay_rate=0.6, embedx_threshold=1.0, cvm=args.cvm, embed=rule, embedx=rule
)
SERVED = ("sgd", "momentum", "adagrad", "adam", "adamw", "rowwise_adagrad", "ftrl")
"""Of which ``--optimizer each`` trains a model of its own with each one, side by side."""


class Tiny(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        start = fleet.nn.uniform(-0.1, 0.1)
        kept: dict[str, Any] = {"initializer": start, "storage": args.storage}
        if args.accessor:
            kept["accessor"] = ACCESSOR
        if args.entry:
            kind, _, number = args.entry.partition(":")
            if kind == "count":
                kept["entry"] = fleet.nn.CountFilterEntry(int(number))
            else:
                kept["entry"] = fleet.nn.ProbabilityEntry(float(number))
        more = 2 if args.cvm else 0
        self.wide = fleet.nn.EmbeddingBag(0, 1 + more, mode="sum", **kept)
        self.deep = fleet.nn.Embedding(0, 4 + more, **kept)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(3 * (4 + more), 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if args.accessor:
            return self.counted(ids)
        deep = self.mlp(self.deep(ids).flatten(1))
        logits: torch.Tensor = (deep + self.wide(ids)).squeeze(1)
        return logits

    def counted(self, ids: torch.Tensor) -> torch.Tensor:
        counts = {"show": 1.0 + ids[:, 0] % 3, "click": (ids[:, 1] % 2).float()}
        if not args.cvm:
            deep = self.mlp(self.deep(ids, **counts).flatten(1))
            made: torch.Tensor = (deep + self.wide(ids, **counts)).squeeze(1)
            return made
        cvm = torch.stack([*counts.values()], dim=1)
        deep = fleet.nn.continuous_value_model(self.deep(ids), cvm).flatten(1)
        wide = fleet.nn.continuous_value_model(self.wide(ids), cvm, False)
        logits: torch.Tensor = (self.mlp(deep) + wide).squeeze(1)
        return logits


class Each(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.towers = torch.nn.ModuleList(Tiny() for _ in SERVED)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.stack([tower(ids) for tower in self.towers])


fleet.init()
if fleet.is_server():
    fleet.init_server(args.server_load or None)
    fleet.run_server()
    raise SystemExit(0)

rank, size = fleet.worker_index(), fleet.worker_num()
torch.manual_seed(0)
strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode != "sync"
if args.mode == "geo":
    strategy.a_sync_configs = {"k_steps": args.k_steps, "geo_merge": args.geo_merge}
if args.max_staleness is not None:
    strategy.a_sync_configs = {"max_staleness": args.max_staleness}
strategy.a_sync_configs["wire_dtype"] = args.wire_dtype
if strategy.a_sync:
    strategy.a_sync_configs["fresh_steps"] = args.fresh_steps
if args.evict:
    strategy.eviction_configs = json.loads(args.evict)
is_each = args.optimizer == "each"
model: Any = fleet.distributed_model((Each if is_each else Tiny)().to(args.device))
towers = [*model.towers] if is_each else [model]
if is_each:
    pairs = zip(SERVED, towers, strict=True)
    optimizers = [OPTIMIZERS[name](tower.parameters()) for name, tower in pairs]
else:
    optimizers = OPTIMIZERS[args.optimizer](model.parameters())
optimizer = fleet.distributed_optimizer(optimizers, strategy)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.95)
fleet.init_worker()
if args.load:
    fleet.load_model(args.load)
if args.reload:
    for _ in range(3):
        others = torch.arange(150, 300, device=args.device)
        optimizer.minimize(model(others.reshape(-1, 3)).sum())
    fleet.load_model(args.reload)

data = torch.Generator().manual_seed(1)
for _ in range(args.skip):
    torch.randint(0, 200, (args.batch, 3), generator=data)
    scheduler.step()
losses: list[float] = []


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for _ in range(args.steps + (args.uneven if rank == 0 else 0)):
        ids = torch.randint(0, 200, (args.batch, 3), generator=data)
        label = ((ids % 7).sum(1) > 9).float()
        mine = slice(rank * args.batch // size, (rank + 1) * args.batch // size)
        yield ids[mine].to(args.device), label[mine].to(args.device)


def wanted(batch: tuple[torch.Tensor, torch.Tensor]) -> dict[Any, torch.Tensor]:
    wrong = args.prefetch == "wrong"
    return {model.wide: batch[0], "deep": batch[0][1:] if wrong else batch[0]}


loader: Iterable[tuple[torch.Tensor, torch.Tensor]] = batches()
if args.prefetch:
    ids_of = None if args.prefetch == "watch" else wanted
    loader = fleet.prefetch(loader, model, ids=ids_of, depth=args.depth)
gone: list[dict[str, int]] = []
for number, (ids, label) in enumerate(loader):
    if args.reader and number and number % 20 == 0:  # the next change has something
        while not (args.reader / str(number // 20 - 1)).exists():
            time.sleep(0.01)  # noqa: TID251 - between two looks
    if args.days and number % args.days == 0:
        day = args.first_day + number // args.days
        fleet.set_date(f"202611{day + 1:02}")
        if day:
            would = fleet.shrink(dry_run=True)
            gone.append(fleet.shrink())
            assert gone[-1] == would or args.mode != "sync", (gone, would)
    parts = [
        torch.nn.functional.binary_cross_entropy_with_logits(logits, label)
        for logits in model(ids).reshape(-1, len(label))
    ]
    optimizer.minimize(torch.stack(parts).sum())
    scheduler.step()
    share = 1 if args.uneven else len(label) / args.batch
    losses += [part.item() * share for part in parts]
if losses and not args.uneven:  # once, at the end: a step of async waits for nobody
    losses = fleet.util.all_reduce(losses, "sum").tolist()

fleet.finish_training()
if args.save:
    fleet.save_persistables(args.save)
if args.inference:
    fleet.save_inference_model(args.inference)
model.eval()
probe = torch.arange(200, device=args.device).reshape(-1, 1)
with torch.no_grad():
    rows = torch.cat(
        [torch.cat([t.deep(probe), t.wide(probe).unsqueeze(1)], 2).flatten() for t in towers]
    )
    known_and_unknown = torch.arange(100, 400, device=args.device).reshape(-1, 3)
    predictions = model(known_and_unknown)
fleet.stop_worker()
dense = torch.cat([value.flatten() for tower in towers for value in tower.mlp.parameters()])
traffic = {}
if args.traffic:
    assert session.job is not None
    counted = session.job.pservers.traffic
    traffic = {"sent": counted.sent_bytes, "received": counted.received_bytes}
print(
    json.dumps(
        {
            **traffic,
            "losses": losses,
            "dense": dense.tolist(),
            "rows": rows.tolist(),
            "predictions": predictions.tolist(),
            "staleness_p99": optimizer.staleness_p99(),
            "prefetch_misses": optimizer.prefetch_misses,
            "gone": gone,
        }
    )
)
