"""Train with an idiom about parameters, and print how far it is from torch in one process.

Every worker computes torch's answer on the whole batch. Each batch has every id, so that a
dense optimizer's rows are those of a lazy one. ``--what`` names the idiom.
"""

import argparse
import json
from typing import Any

import torch

import paramfleet as fleet

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="sync")
parser.add_argument("--what", default="plain")
parser.add_argument("--optimizer", default="adam")
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--save", default="", help="a folder for the checkpoint at the end")
parser.add_argument("--load", default="", help="the folder of one to begin with")
parser.add_argument("--done", type=int, default=0, help="steps that it has")
args = parser.parse_args()
WHAT, NUM_IDS, SIZE = args.what, 6, 12


class Model(torch.nn.Module):
    def __init__(self, embedding: Any) -> None:
        super().__init__()
        self.rows, self.more = embedding("rows", 0.5), embedding("more", 0.25)
        torch.manual_seed(3)
        self.tower, self.side, self.late = (torch.nn.Linear(4, 1) for _ in range(3))
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        self.late.requires_grad_(not WHAT.startswith("thawed"))

    def forward(self, ids: torch.Tensor, *, side: bool, more: bool) -> torch.Tensor:
        held = self.rows(ids)
        if more:
            held = held + self.more(ids)
        found: torch.Tensor = self.tower(held).squeeze(1) * self.scale
        if side:
            found = found + self.side(held).squeeze(1)
        late: torch.Tensor = self.late(held).squeeze(1)
        return found + late


def ours(name: str, first: float) -> torch.nn.Module:
    initializer = fleet.nn.constant(first)
    return fleet.nn.Embedding(NUM_IDS, 4, name=name, initializer=initializer)


def torchs(_name: str, first: float) -> torch.nn.Module:
    found = torch.nn.Embedding(NUM_IDS, 4, sparse=WHAT == "zeros")
    with torch.no_grad():
        found.weight.fill_(first)
    return found


def optimizer_of(model: Model) -> torch.optim.Optimizer:
    rows = [*model.rows.parameters(), *model.more.parameters()]
    rest = [p for p in model.parameters() if all(p is not row for row in rows)]
    decay = 0.1 if args.optimizer != "adagrad" else 0.0
    groups: list[dict[str, Any]] = [{"params": rows}, {"params": rest, "weight_decay": decay}]
    if args.optimizer == "momentum":
        return torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    if args.optimizer == "damped":
        groups[1]["dampening"] = 0.5
        return torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    if args.optimizer == "adagrad":
        return torch.optim.Adagrad(groups, lr=0.05)
    return torch.optim.Adam(groups, lr=0.05)


def scheduler_of(optimizer: torch.optim.Optimizer) -> Any:
    schedulers = torch.optim.lr_scheduler
    if WHAT == "onecycle":
        return schedulers.OneCycleLR(optimizer, max_lr=0.1, total_steps=50)
    if WHAT == "cyclic":
        return schedulers.CyclicLR(optimizer, 0.01, 0.1, step_size_up=3)
    return None


def change(model: Model, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Do what a script does between two steps."""
    if WHAT == "clamped":
        with torch.no_grad():
            model.tower.weight.clamp_(min=0.3)
            model.scale.clamp_(max=1.4)
        model.side.weight.data = model.side.weight.data / model.side.weight.data.norm()
    if WHAT == "loaded" and step == 3:
        state = {f"tower.{name}": p * 0.5 for name, p in model.tower.named_parameters()}
        model.load_state_dict(state, strict=False)
    if WHAT == "thawed" and step == 3:
        model.late.requires_grad_(True)
    if WHAT == "thawed_alone" and step == 3 and rank == 0:
        model.late.requires_grad_(True)
    if WHAT == "frozen" and step == 3:
        model.side.requires_grad_(False)
    if WHAT == "decayed":
        optimizer.param_groups[1]["weight_decay"] = 0.1 / (step + 2)
        if args.optimizer == "adam":
            optimizer.param_groups[1]["eps"] = 1e-3 * (step + 1)


fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    raise SystemExit(0)
strategy = fleet.DistributedStrategy()
strategy.a_sync = args.mode != "sync"
if args.mode == "geo":
    strategy.a_sync_configs = {"k_steps": 1, "geo_growth": 0}
if args.mode == "gpubox":
    strategy.a_sync_configs = {"use_ps_gpu": 1}
model, reference = fleet.distributed_model(Model(ours)), Model(torchs)
own, theirs = optimizer_of(model), optimizer_of(reference)
lazy = None
if WHAT == "zeros":  # a dense optimizer moves rows by zeros
    lazy = torch.optim.SparseAdam(theirs.param_groups.pop(0)["params"], lr=0.05)
optimizer = fleet.distributed_optimizer(own, strategy)
fleet.init_worker()
rank, size = fleet.worker_index(), fleet.worker_num()
schedulers = [each for each in (scheduler_of(optimizer), scheduler_of(theirs)) if each]
shuffle = torch.Generator().manual_seed(2)
targets = [torch.rand(2 * SIZE, generator=shuffle) for _ in range(args.done + args.steps)]
ids = torch.arange(2 * SIZE) % NUM_IDS
mine = range(2) if size == 1 else [rank]


def loss_of(model: Model, half: int, step: int) -> torch.Tensor:
    side = {"unused": half == 0}.get(WHAT, WHAT not in {"alternate", "zeros"} or step % 2)
    more = step % 3 != 1 if WHAT in {"alternate", "zeros"} else True
    where = slice(half * SIZE, (half + 1) * SIZE)
    found: torch.Tensor = model(ids[where], side=side, more=more) - targets[step][where]
    return found.square().mean()


def backward(loss: torch.Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped


def step_reference(step: int, *, keeps: bool) -> None:
    theirs.zero_grad(set_to_none=keeps)
    if lazy is not None:
        lazy.zero_grad(set_to_none=keeps)
    for half in range(2):
        if WHAT == "thawed_alone":
            reference.late.requires_grad_(half == 0 and step > 3)
        backward(loss_of(reference, half, step) / 2)
    theirs.step()
    if lazy is not None:
        lazy.step()  # type: ignore[no-untyped-call]  # torch leaves it untyped


def step_both(step: int) -> None:
    keeps = WHAT != "zeros"
    step_reference(step, keeps=keeps)
    if step < args.done:  # the checkpoint has it
        change(reference, theirs, step)
        if WHAT == "thawed":
            change(model, optimizer, step)
        return
    optimizer.zero_grad(set_to_none=keeps)
    if WHAT == "accumulated":
        for half in mine:
            backward(loss_of(model, half, step) / len(mine))
    else:
        backward(torch.stack([loss_of(model, half, step) for half in mine]).mean())
    optimizer.step(examples=SIZE * len(mine))
    for each in schedulers:
        each.step()
    for each, by in ((model, optimizer), (reference, theirs)):
        change(each, by, step)


def differ() -> float:
    far = [0.0]
    for (name, a), b in zip(model.named_parameters(), reference.parameters(), strict=True):
        if name not in {"rows.weight", "more.weight"}:
            far.append(float((a - b).detach().abs().max()))
    with torch.no_grad():
        every = torch.arange(NUM_IDS)
        for each, other in ((model.rows, reference.rows), (model.more, reference.more)):
            far.append(float((each(every) - other.weight).abs().max()))
    return max(far)


if args.load:
    fleet.load_model(args.load)
steps: Any = range(args.done + args.steps)
differences = []
if args.mode == "gpubox":
    passes = [steps[:5], steps[5:]]
    every = {"rows": torch.arange(NUM_IDS), "more": torch.arange(NUM_IDS)}
    for part in passes:
        for step in fleet.device_pass(list(part), model, ids=lambda _: every):
            step_both(step)
            differences.append(differ())
else:
    for step in steps:
        step_both(step)
        if step >= args.done:
            differences.append(differ())
if args.save:
    fleet.save_persistables(args.save)
fleet.finish_training()
end = differ()
fleet.stop_worker()
print(json.dumps({"differ": max(differences), "end": end}))
