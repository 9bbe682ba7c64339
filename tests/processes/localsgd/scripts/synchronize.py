"""One of two workers that synchronize in every way; rank 0 prints what it found as JSON."""

import copy
import json
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from paramfleet.training.localsgd.core.ledger import Ledger
from paramfleet.training.localsgd.core.settings import LocalSgdSettings
from paramfleet.training.localsgd.group_synchronizer import (
    GroupSynchronizer,
    GroupSynchronizerSettings,
)
from paramfleet.training.localsgd.lost_ranks import SynchronizationLostError
from paramfleet.training.localsgd.optimizer import LocalSgdOptimizer
from paramfleet.training.localsgd.over_group import localsgd_over_group

SMALL_BUCKETS = GroupSynchronizerSettings(timeout_s=60, bucket_mb=0.002)


def network(*, has_norm: bool = False) -> torch.nn.Sequential:
    torch.manual_seed(dist.get_rank())  # the workers begin with rank 0's, whatever they had
    layers: list[torch.nn.Module] = [torch.nn.Linear(20, 40), torch.nn.Tanh()]
    if has_norm:
        layers.append(torch.nn.BatchNorm1d(40))
    return torch.nn.Sequential(*layers, torch.nn.Linear(40, 30), torch.nn.Linear(30, 5))


def batch(step: int, *, rank: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    number = dist.get_rank() if rank is None else rank
    random = torch.Generator().manual_seed(1000 * number + step)
    inputs = torch.randn(16, 20, generator=random)
    return inputs, inputs[:, :5].argmax(dim=1)


def train(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range
) -> torch.Tensor:
    for step in steps:
        inputs, classes = batch(step)
        loss = torch.nn.functional.cross_entropy(model(inputs), classes)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if isinstance(optimizer, LocalSgdOptimizer):
            optimizer.step(loss=loss)
        else:
            optimizer.step()
    return flat(model)


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def with_ddp(momentum: float) -> torch.Tensor:
    model = torch.nn.parallel.DistributedDataParallel(network())
    return train(model, torch.optim.SGD(model.parameters(), 0.1, momentum=momentum), range(8))


def apart(
    settings: LocalSgdSettings, *, steps: int = 12, inner: str = "SGD", momentum: float = 0.0
) -> tuple[torch.Tensor, LocalSgdOptimizer]:
    model = network()
    extra = {"momentum": momentum} if inner == "SGD" else {}
    optimizer = localsgd_over_group(
        getattr(torch.optim, inner)(
            model.parameters(), 0.1 if inner == "SGD" else 0.01, **extra
        ),
        settings,
        group_settings=SMALL_BUCKETS,
    )
    train(model, optimizer, range(steps))
    optimizer.synchronize()
    return flat(model), optimizer


def spread(values: torch.Tensor) -> float:
    """Return how far the workers' values are from each other at the most."""
    own, most = values.clone(), values.clone()
    dist.all_reduce(own, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return float((most - own).max())


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


NARROW_SUMS = ("float32", "float16", "int8", "float8_e4m3")


def narrow_sums(wire_dtype: str) -> dict[str, float]:
    """Exchange the same deltas many times; compare the sums with the exact ones."""
    size, times = 3000, 40
    settings = LocalSgdSettings(wire_dtype=wire_dtype)  # type: ignore[arg-type]
    ledger = Ledger()
    synchronizer = GroupSynchronizer(
        [size], settings, ledger=ledger, device=torch.device("cpu"),
        group_settings=SMALL_BUCKETS,
    )  # fmt: skip
    deltas = [
        torch.randn(size, generator=torch.Generator().manual_seed(rank)) for rank in (0, 1)
    ]
    snapshot = torch.zeros(size)
    for _ in range(times):
        snapshot = synchronizer.exchange(0, snapshot, deltas[dist.get_rank()].clone()).wait()
    exact = -times * (deltas[0] + deltas[1]) / 2
    return {
        "error": distance(snapshot, exact),
        "spread": spread(snapshot),
        "bytes": ledger.bytes_sent / times,
    }


def go_on(settings: LocalSgdSettings) -> float:
    """Return how far a restored worker comes from one that was never stopped."""
    models, optimizers = [], []
    for _ in range(2):
        model = network()
        inner = torch.optim.AdamW(model.parameters(), 0.01)
        models.append(model)
        optimizers.append(localsgd_over_group(inner, settings, group_settings=SMALL_BUCKETS))
    train(models[0], optimizers[0], range(7))
    state = copy.deepcopy(optimizers[0].state_dict())
    models[1].load_state_dict(models[0].state_dict())
    optimizers[1].load_state_dict(state)
    ends = [train(*pair, range(7, 14)) for pair in zip(models, optimizers, strict=True)]
    return distance(*ends)


def with_norm() -> dict[str, float]:
    model = network(has_norm=True)
    optimizer = localsgd_over_group(
        torch.optim.SGD(model.parameters(), 0.1),
        LocalSgdSettings(k_steps=4, begin_step=0),
        buffers=model.buffers(),
    )
    train(model, optimizer, range(3))
    statistics = torch.cat([b.float().reshape(-1) for b in model.buffers()])
    before = spread(statistics)
    mean = statistics.clone()
    optimizer.synchronize()
    dist.all_reduce(mean)
    after = torch.cat([b.float().reshape(-1) for b in model.buffers()])
    return {"before": before, "after": spread(after), "error": distance(after, mean / 2)}


def lost(store: Store) -> dict[str, Any]:
    """Let rank 1 stay away."""
    model = network()
    optimizer = localsgd_over_group(
        torch.optim.SGD(model.parameters(), 0.1),
        LocalSgdSettings(),
        group_settings=GroupSynchronizerSettings(timeout_s=2),
    )
    if dist.get_rank():
        store.wait(["rank 0 gave up"], timedelta(seconds=60))
        return {}
    try:
        train(model, optimizer, range(1))
    except SynchronizationLostError as error:
        return {"sentence": str(error), "missing": error.missing}
    finally:
        store.set("rank 0 gave up", "")
    return {}


def main() -> None:
    rank, file = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    store = dist.FileStore(file, 2)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    plain, _ = apart(LocalSgdSettings(), steps=8)
    average = LocalSgdSettings(optimizer_state="average")
    with_momentum = with_ddp(0.9)
    found: dict[str, Any] = {
        "ddp": distance(plain, with_ddp(0.0)),
        "ddp_momentum": {
            rule: distance(apart(settings, steps=8, momentum=0.9)[0], with_momentum)
            for rule, settings in (("keep", LocalSgdSettings()), ("average", average))
        },
        "narrow": {name: narrow_sums(name) for name in NARROW_SUMS},
        "norm": with_norm(),
    }
    diloco = {"begin_step": 0, "outer_optimizer": "nesterov", "outer_lr": 0.7,
              "outer_momentum": 0.9}  # fmt: skip
    cases = {
        "overlap": {"k_steps": 4, "overlap_steps": 4},
        "reset": {"k_steps": 4, "optimizer_state": "reset"},
        "streaming": {
            "k_steps": 6,
            "fragments": 3,
            "overlap_steps": 2,
            "mixing": 0.5,
            **diloco,
        },
        "int8": {"k_steps": 4, "wire_dtype": "int8", "fragments": 2, **diloco},
        "adaptive": {"k_steps": 4, "interval": "paper"},
    }
    found["ways"] = {}
    for name, case in cases.items():
        values, optimizer = apart(LocalSgdSettings(**case), inner="AdamW")  # type: ignore[arg-type]
        found["ways"][name] = {"spread": spread(values), **optimizer.ledger.as_json()}
    found["go_on"] = go_on(LocalSgdSettings(k_steps=4, wire_dtype="int8", **diloco))  # type: ignore[arg-type]
    found["lost"] = lost(store)
    if rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
