"""Create rows, remove most of them, and create as many others; print what memory they take."""

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path

import torch

import paramfleet as fleet
from paramfleet.api.public import session

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="async")
parser.add_argument("--rows", type=int, default=100_000)
parser.add_argument("--dim", type=int, default=16)
parser.add_argument("--batch", type=int, default=25_000)
parser.add_argument("--turns", type=int, default=2)
args = parser.parse_args()

fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    raise SystemExit(0)

strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode != "sync"
if args.mode == "geo":
    strategy.a_sync_configs = {"k_steps": 2}
model = fleet.distributed_model(fleet.nn.Embedding(0, args.dim, name="rows"))
optimizer = fleet.distributed_optimizer(torch.optim.Adagrad(model.parameters()), strategy)
fleet.init_worker()


def create(ids: range) -> None:
    """Train rows once each."""
    for start in range(ids.start, ids.stop, args.batch):
        some = torch.arange(start, min(start + args.batch, ids.stop))
        optimizer.minimize(model(some).pow(2).sum())


def resident(pid: str) -> int:
    """Return the bytes that a process has in memory."""
    (line,) = [x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in x]
    return 1024 * int(line.split()[1])


def servers() -> Iterator[str]:
    """Yield the servers that the launcher of this worker started."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = f"PPid:\t{os.getppid()}\n" in (process / "status").read_text()
            if is_ours and b"TRAINING_ROLE=PSERVER\0" in (process / "environ").read_bytes():
                yield process.name
        except OSError:
            continue


def memory() -> dict[str, int]:
    """Return what the servers count and the kernel shows, once all steps are with them."""
    job = session.job
    assert job is not None
    optimizer.running.flush()
    answers = job.communicator.wait(job.pservers.call_all("status", {}))
    tables = [table for answer in answers for table in answer.fields["tables"]]
    return {
        "rows": sum(table["rows"] for table in tables),
        "bytes": sum(table["bytes"] for table in tables),
        "servers": sum(map(resident, servers())),
        "worker": resident("self"),
    }


create(range(args.rows))
before = memory()
print(json.dumps({"before": before}), flush=True)
gone, kept, after = range(args.rows * 9 // 10), [], before
for turn in range(1, args.turns + 1):
    num = fleet.remove_rows(model, torch.arange(gone.start, gone.stop))
    kept.append(memory()["rows"])
    assert num == len(gone), num
    gone = range(turn * 10 * args.rows, turn * 10 * args.rows + len(gone))
    create(gone)
    after = memory()
    print(json.dumps({"before": before, "after": after, "kept": kept}), flush=True)
fleet.stop_worker()
