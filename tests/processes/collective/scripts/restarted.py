"""Train among several workers, save every few steps, and go on from the newest checkpoint.

    restarted.py KIND FOLDER STEPS [KILL]

KIND is ``sync`` or a strategy of the LocalSGD family. KILL is ``RANK:STEP``: in the first start
that worker kills itself before this step; or ``RANK:save``: while it saves for the second time.
Worker 0 prints a JSON line with the SHA-256 of the values of all workers.
"""

import hashlib
import json
import os
import signal
import sys
from typing import Any

import torch
from torch.distributed.tensor import DTensor

import paramfleet as fleet

KIND, FOLDER, STEPS = sys.argv[1], sys.argv[2], int(sys.argv[3])
VICTIM, _, WHEN = (sys.argv[4] if len(sys.argv) > 4 else ":").partition(":")
EVERY = 4


def main() -> None:
    fleet.init(is_collective=True)
    rank = fleet.worker_index()
    is_victim = str(rank) == VICTIM and not fleet.restart_count()
    torch.manual_seed(rank)
    layers = [torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3)]
    model = fleet.distributed_model(torch.nn.Sequential(*layers, torch.nn.Linear(8, 1)))
    strategy = fleet.DistributedStrategy()
    if KIND != "sync":
        setattr(strategy, KIND, True)
    if KIND in {"localsgd", "diloco"}:
        setattr(strategy, f"{KIND}_configs", {"k_steps": 3})
    inner = torch.optim.AdamW(model.parameters(), lr=0.05)
    optimizer = fleet.distributed_optimizer(inner, strategy)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.7)
    batches = Batches(rank)
    fleet.register_for_checkpointing(schedule=schedule, batches=batches, saves=Saves(is_victim))
    begun = fleet.newest_checkpoint(FOLDER)
    lacking = [] if begun is None else fleet.load_model(begun)
    while optimizer.num_steps < STEPS:
        if is_victim and str(optimizer.num_steps) == WHEN:
            os.kill(os.getpid(), signal.SIGKILL)
        inputs, labels = next(iter(batches))
        optimizer.minimize(torch.nn.functional.mse_loss(model(inputs).squeeze(1), labels))
        schedule.step()
        if optimizer.num_steps % EVERY == 0:
            fleet.save_persistables(FOLDER, keep=2)
    everyone = fleet.util.all_gather(digest(model.state_dict()))
    parameters = digest(dict(model.named_parameters()))
    rates = [group["lr"] for each in (optimizer, inner) for group in each.param_groups]
    fleet.finish_training()
    final = digest(model.state_dict())
    fleet.stop_worker()
    if not rank:
        report = {
            "values": everyone,
            "final": final,
            "began": "" if begun is None else begun.name,
            "lacking": lacking,
            "parameters": parameters,
            "rates": [*rates, *schedule.get_last_lr()],
            "restarts": fleet.restart_count(),
        }
        print(json.dumps(report), flush=True)


class Batches:
    """Random batches of a worker, with a position."""

    def __init__(self, rank: int) -> None:
        self._random = torch.Generator().manual_seed(100 + rank)

    def __iter__(self) -> Any:
        while True:
            inputs = torch.randn(8, 6, generator=self._random)
            yield inputs, inputs.sum(1)

    def state_dict(self) -> dict[str, Any]:
        return {"random": self._random.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._random.set_state(state["random"])


class Saves:
    """Counts how often it was saved, and may end its process then."""

    def __init__(self, is_victim: bool) -> None:
        self._is_victim = is_victim
        self._count = 0

    def state_dict(self) -> dict[str, Any]:
        self._count += 1
        if self._is_victim and WHEN == "save" and self._count == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._count = state["count"]


def digest(values: dict[str, torch.Tensor]) -> str:
    found = hashlib.sha256()
    for name, each in sorted(values.items()):
        value = (each.full_tensor() if isinstance(each, DTensor) else each).detach()
        found.update(name.encode() + value.contiguous().numpy().tobytes())
    return found.hexdigest()


main()
