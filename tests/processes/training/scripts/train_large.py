"""Train a dense model with gradients that are known beforehand; print what came of it.

Gradients are whole numbers and rates powers of 2, so that sums are exact in any order: two
runs end with the same bits, however their requests were divided.
"""

import argparse
import asyncio
import hashlib
import json
import resource
import sys
from pathlib import Path
from typing import Any

import torch

import paramfleet as fleet
from paramfleet.api.public import session
from paramfleet_pserver.hosting.group import HostedGroup
from paramfleet_shared.discovery.session import JobSession
from paramfleet_shared.testing.loop_watch import LoopWatch

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="sync")
parser.add_argument("--values", type=int, default=20_001)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--wire_dtype", default="float32")
parser.add_argument("--optimizer", default="sgd")
parser.add_argument("--save", default="")
args = parser.parse_args()

PIECE = 1 << 20
"""Values of a gradient that are made at a time: what is measured is the library's memory."""


class Dense(torch.nn.Module):
    """Two tables' worth of parameters: one long, one of several short."""

    def __init__(self) -> None:
        super().__init__()
        self.long = torch.nn.Parameter(torch.empty(args.values).fill_(0.5))
        self.short = torch.nn.ParameterList(torch.ones(33, n) for n in (1, 7, 40))


def gradient(parameter: torch.Tensor, step: int) -> torch.Tensor:
    """Return whole numbers from 0 to 7, other ones in each step, worker and place."""
    numbers = torch.empty(parameter.numel())
    for start in range(0, len(numbers), PIECE):
        stop = min(start + PIECE, len(numbers))
        some = torch.arange(start, stop, dtype=torch.int32)
        numbers[start:stop] = some.add_(3 * step + 5 * fleet.worker_index()).bitwise_and_(7)
    return numbers.view(parameter.shape)


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def serve() -> None:
    watch = LoopWatch()
    live = HostedGroup.live

    async def watched(self: HostedGroup, session: JobSession, **more: Any) -> None:
        """Watch from joining on: before, no lease runs."""
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch.run())
            await live(self, session, **more)
            watching.cancel()
        say(longest_pause_s=watch.longest_s, peak_bytes=peak_bytes())

    HostedGroup.live = watched  # type: ignore[method-assign]
    fleet.init_server()
    fleet.run_server()


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def bytes_now() -> int:
    """Return what this process has in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def digest(values: torch.Tensor) -> str:
    return hashlib.sha256(values.detach().numpy().data.cast("B")).hexdigest()


before_bytes = bytes_now()
fleet.init()
if fleet.is_server():
    serve()
    sys.exit(0)

strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode != "sync"
if args.mode == "geo":
    strategy.a_sync_configs = {"k_steps": 1, "geo_merge": "remainder"}  # exact halves
elif args.mode == "localsgd":
    strategy.localsgd = True
    strategy.localsgd_configs = {"k_steps": 1}
elif args.mode == "async":
    strategy.a_sync_configs = {"max_merge_var_num": 1, "async_rate": "full"}
if args.mode != "localsgd":
    strategy.a_sync_configs["wire_dtype"] = args.wire_dtype
model = fleet.distributed_model(Dense())
groups = [{"params": [model.long]}, {"params": list(model.short)}]
make: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
optimizer = fleet.distributed_optimizer(make[args.optimizer](groups, lr=0.25), strategy)
watch = LoopWatch()
assert session.communicator is not None
watching = session.communicator.submit(watch.run())
fleet.init_worker()
for step in range(args.steps):
    for parameter in model.parameters():
        parameter.grad = gradient(parameter, step)
    optimizer.step()
    optimizer.zero_grad()
if args.save:
    fleet.save_persistables(args.save)
    before = digest(model.long)
    fleet.load_model(args.save)
    assert digest(model.long) == before, "what was saved was loaded"
fleet.finish_training()
watching.cancel()
job = session.job
assert job is not None
say(
    digests=[digest(parameter) for parameter in model.parameters()],
    ends=[model.long[0].item(), model.long[-1].item()],
    pieces=job.pservers.traffic.sent_bytes.get("stage", 0),
    longest_pause_s=watch.longest_s,
    peak_bytes=peak_bytes(),
    bytes_a_value=(peak_bytes() - before_bytes) / args.values,
)
fleet.stop_worker()
