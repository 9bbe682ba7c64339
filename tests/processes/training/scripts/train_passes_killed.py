"""Run ``train_passes.py``, and kill this process with SIGKILL at one point of it.

The point is in logical time. ``--die=OPERATION:WHEN:SERVER:NTH`` dies at the NTH request of an
operation to a pserver: ``before`` it is sent, ``after`` it was answered and before this worker
knows, or ``alone``: after that, while the requests to other pservers were never sent.
``--die=step:before:0:NTH`` dies in the NTH step. ``--die_at=EVENT`` counts all of these, and
``--turns`` lets so many turns of the event loop pass first, in which others are sent.
"""

import argparse
import asyncio
import os
import runpy
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from paramfleet.training.modes.gpubox.mode import GpuBoxMode
from paramfleet_shared.net.rpc.client import Channel

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--die", default="")
parser.add_argument("--die_at", type=int, default=0)
parser.add_argument("--turns", type=int, default=0)
args, rest = parser.parse_known_args()

OF_PASSES = {"pass_state", "read_pass", "prepare_pass", "commit_pass", "abort_pass"}

seen: Counter[str] = Counter()
events = 0
last = ""
"""The point that was reached last."""


def die() -> None:
    print(f"dies at {last}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(turns: int) -> None:
    if turns:
        asyncio.get_running_loop().call_soon(die_after, turns - 1)
    else:
        die()


def reaches(point: str) -> bool:
    """Count a point; return whether this is the one to die at."""
    global events, last
    events, last = events + 1, point
    seen[point] += 1
    return bool(args.die == f"{point}:{seen[point]}")


call, step = Channel.call, GpuBoxMode.step


async def call_and_die(self: Channel, op: str, *more: Any, **named: Any) -> Any:
    if op not in OF_PASSES or not self.peer.startswith("pserver "):
        return await call(self, op, *more, **named)
    server = self.peer.removeprefix("pserver ")
    alone = f"{op}:alone:"
    if args.die.startswith(alone) and not args.die.startswith(f"{alone}{server}:"):
        _, _, _, nth = args.die.split(":")
        seen[alone] += 1
        if seen[alone] == int(nth):
            await asyncio.Event().wait()
    if reaches(f"{op}:before:{server}"):
        die()
    if events == args.die_at:
        die_after(args.turns)
    answer = await call(self, op, *more, **named)
    seen[f"{alone}{server}"] += 1
    if reaches(f"{op}:after:{server}") or args.die == f"{alone}{server}:{seen[alone + server]}":
        die()
    if events == args.die_at:
        die_after(args.turns)
    return answer


def step_and_die(self: GpuBoxMode, *more: Any, **named: Any) -> None:
    if reaches("step:before:0") or events == args.die_at:
        die()
    step(self, *more, **named)


Channel.call = call_and_die  # type: ignore[method-assign]
GpuBoxMode.step = step_and_die  # type: ignore[method-assign]

script = str(Path(__file__).with_name("train_passes.py"))
sys.argv = [script, *rest]
runpy.run_path(script, run_name="__main__")
print(f"events={events}")
