"""Train until a file says that it is enough; say so after a few steps."""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import torch

import paramfleet as fleet
from paramfleet.api import public as surface
from paramfleet_shared.discovery.placement import Placement

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="sync")
parser.add_argument("--k_steps", type=int, default=2)
parser.add_argument("--max_staleness", type=int)
parser.add_argument("--fresh_steps", type=int, default=100)
parser.add_argument("--until", default="", help="end when this file is there")
parser.add_argument("--steps_of_0", type=int, default=0, help="worker 0 ends after so many")
parser.add_argument("--raise_at", type=int, default=0, help="worker 1 raises in this step")
parser.add_argument("--return_at", type=int, default=0, help="worker 1 just ends there")
parser.add_argument("--asks", action="store_true", help="look whether it should stop")
parser.add_argument("--slow_data_ms", type=float, default=0.0, help="of worker 1")
parser.add_argument("--slow_compute_ms", type=float, default=0.0, help="of worker 1")
parser.add_argument("--slow_network_ms", type=float, default=0.0, help="each way, of worker 1")
parser.add_argument("--evict", default="{}", help="JSON of strategy.eviction_configs")
parser.add_argument("--mark", default="", help="makes the command line of a job unique")
args = parser.parse_args()


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.deep = fleet.nn.Embedding(0, 4)
        self.out = torch.nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if rank == 1:
            time.sleep(args.slow_compute_ms / 1000)  # noqa: TID251 - what slow computing does
        logits: torch.Tensor = self.out(self.deep(ids)).squeeze(1)
        return logits


def far_away(delay_s: float) -> None:
    """Let this worker reach the pservers over a long wire."""
    sys.path.insert(0, str(Path(__file__).parents[4] / "benchmarks"))
    from delay_proxy import DelayProxy  # noqa: PLC0415 - only where the wire is long

    endpoints: list[str] = []
    ready = threading.Event()

    async def carry(ports: list[int]) -> None:
        async with contextlib.AsyncExitStack() as wires:
            for port in ports:
                wire = await wires.enter_async_context(DelayProxy(port, delay_s=delay_s))
                endpoints.append(wire.endpoint)
            ready.set()
            await asyncio.Event().wait()

    communicator = surface.session.communicator
    assert communicator is not None
    member = communicator.session
    found = communicator.wait(member.wait_placement())
    ports = [int(endpoint.rpartition(":")[2]) for endpoint in found.endpoints]
    threading.Thread(target=lambda: asyncio.run(carry(ports)), daemon=True).start()
    ready.wait()

    async def placement() -> Placement:
        return replace(found, endpoints=tuple(endpoints))

    member.wait_placement = placement  # type: ignore[method-assign]


print(f"pid={os.getpid()}", file=sys.stderr, flush=True)
fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    raise SystemExit(0)

rank = fleet.worker_index()
strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode != "sync"
strategy.eviction_configs = json.loads(args.evict)
if args.mode == "geo":
    strategy.a_sync_configs = {"k_steps": args.k_steps, "geo_growth": 0}
if args.max_staleness is not None:
    strategy.a_sync_configs = {"max_staleness": args.max_staleness}
if strategy.a_sync:
    strategy.a_sync_configs["fresh_steps"] = args.fresh_steps
model = fleet.distributed_model(Small())
optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.01), strategy)
if rank == 1 and args.slow_network_ms:
    far_away(args.slow_network_ms / 1000)
fleet.init_worker()
data = torch.Generator().manual_seed(rank)
step = 0
while not (args.until and Path(args.until).exists()):
    if args.asks and fleet.should_stop():
        break
    if rank == 1:
        time.sleep(args.slow_data_ms / 1000)  # noqa: TID251 - what a slow reader does
    ids = torch.randint(0, 1000, (32,), generator=data)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(ids), (ids % 2).float())
    optimizer.minimize(loss)
    fleet.report(loss=loss.item(), examples=len(ids))
    step += 1
    time.sleep(0.01)  # noqa: TID251 - leaves the cores to the other processes of the test
    if step == 5:
        print(f"training as {rank}", flush=True)
    if step % 20 == 0:
        print(f"trained {step}", flush=True)
    if rank == 1 and step == args.raise_at:
        raise ZeroDivisionError("the script's own mistake")
    if rank == 1 and step == args.return_at:
        raise SystemExit(0)
    if rank == 0 and step == args.steps_of_0:
        break
print(f"stopping after {step}", flush=True)
fleet.stop_worker()
dense = torch.cat([parameter.flatten() for parameter in model.out.parameters()])
print(f"left with {json.dumps(dense.tolist())}", flush=True)
