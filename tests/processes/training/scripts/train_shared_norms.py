"""Train a network with BatchNorm on this worker's part of each batch; print what came of it."""

import argparse
import copy
import io
import json
import time
from pathlib import Path

import torch

import paramfleet as fleet

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="sync")
parser.add_argument("--workers", type=int, default=2, help="that batches are divided among")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--tail", type=int, default=0, help="more steps, of worker 0 alone")
parser.add_argument("--plain", action="store_true", help="without sync_batch_norm")
parser.add_argument("--accumulate", action="store_true", help="two backward passes a step")
parser.add_argument("--only", type=int, default=-1, help="the worker that sets the key")
parser.add_argument(
    "--until", default="", help="worker 1 takes no step before this file is there"
)
args = parser.parse_args()


class Normed(torch.nn.Module):
    """Norms of both kinds behind rows, one of them used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = fleet.nn.Embedding(0, 4, initializer=fleet.nn.uniform(-0.5, 0.5))
        self.first = torch.nn.Linear(12, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.wide = torch.nn.BatchNorm1d(3, affine=False, momentum=None)
        self.last = torch.nn.Linear(8, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.wide(self.rows(ids))
        hidden = self.norm(self.first(rows.flatten(1)))
        logits: torch.Tensor = self.last(self.norm(torch.tanh(hidden) * 3)).squeeze(1)
        return logits


fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    raise SystemExit(0)

rank, size = fleet.worker_index(), fleet.worker_num()
strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode != "sync"
if args.mode == "geo":
    strategy.a_sync_configs = {"k_steps": 4}
if args.mode == "localsgd":
    strategy.localsgd = True
strategy.sync_batch_norm = not args.plain and args.only in {-1, rank}
torch.manual_seed(0)
model = fleet.distributed_model(Normed())
optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.2), strategy)
fleet.init_worker()

print("begins", flush=True)
data = torch.Generator().manual_seed(1)
told = []
first_grads: list[float] = []
for step in range(args.steps + args.tail):
    batch = 48 if step % 5 else 31
    ids = torch.randint(0, 200, (batch, 3), generator=data)
    labels = ((ids % 7).sum(1) > 9).float()
    # The last worker's part is the smallest, and has ids of its own range in every third.
    ends = [0, *(batch * (2 * i + 1) // (2 * args.workers) for i in range(1, args.workers))]
    parts = [slice(a, b) for a, b in zip(ends, [*ends[1:], batch], strict=True)]
    if step >= args.steps:
        if rank > 0:
            break
        mine = parts[0]
    else:
        mine = parts[rank] if size > 1 else slice(None)
    while args.until and rank == 1 and not Path(args.until).exists():
        time.sleep(0.01)  # noqa: TID251 - between two looks
    losses = []
    for _ in range(2 if args.accumulate else 1):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            model(ids[mine]), labels[mine]
        )
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
    if not first_grads:
        grads = [parameter.grad for parameter in model.first.parameters()]
        first_grads = torch.cat([grad.flatten() for grad in grads if grad is not None]).tolist()
    optimizer.step()
    optimizer.zero_grad()
    told.append([losses[0], len(ids[mine])])
if args.steps:
    copy.deepcopy(model.norm)(torch.randn(4, 8))  # a copy asks no other worker
    torch.save(model.norm, io.BytesIO())
fleet.finish_training()
model.eval()
with torch.no_grad():
    outputs = model(torch.arange(150).reshape(-1, 3)).tolist()
fleet.stop_worker()
named = {name: buffer.tolist() for name, buffer in model.norm.named_buffers()}
named |= {f"wide.{name}": buffer.tolist() for name, buffer in model.wide.named_buffers()}
dense = torch.cat([p.flatten() for m in (model.first, model.norm, model.last)
                   for p in m.parameters()])  # fmt: skip
print(
    json.dumps(
        {
            "told": told,
            "first_grads": first_grads,
            "outputs": outputs,
            "dense": dense.tolist(),
            **named,
        }
    )
)
