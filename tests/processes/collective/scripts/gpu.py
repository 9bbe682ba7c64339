"""Collective mode on one GPU: what it trains, and what a step costs beside plain DDP.

It prints JSON: the backend of the device, the first and the last loss of training in bfloat16,
and the median of pairs of step times, ours divided by those of torch's own DDP.
"""

import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import paramfleet as fleet

RESNET = Path(__file__).parents[4] / "examples" / "resnet_localsgd"

WARM_UP, STEPS, ROUNDS, BATCH = 5, 10, 7, 64


def main() -> None:
    """Train one ResNet50 in each way, turn by turn."""
    fleet.init(is_collective=True)
    sys.path.insert(0, str(RESNET))
    resnet50 = importlib.import_module("resnet").ResNet50
    images = torch.randn(BATCH, 3, 224, 224, device="cuda")
    labels = torch.randint(1000, (BATCH,), device="cuda")
    strategy = fleet.DistributedStrategy()
    strategy.amp = True
    strategy.amp_configs = {"dtype": "bfloat16"}
    strategy.sync_batch_norm = "sync" in sys.argv
    model = fleet.distributed_model(resnet50())
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = fleet.distributed_optimizer(sgd, strategy)
    plain = DistributedDataParallel(resnet50().cuda(), bucket_cap_mb=32, device_ids=[0])
    plain_sgd = torch.optim.SGD(plain.parameters(), lr=0.01, momentum=0.9)
    losses: list[float] = []

    def ours() -> None:
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.minimize(loss)
        losses.append(loss.item())

    def torchs() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = plain(images)
        loss = torch.nn.functional.cross_entropy(logits.float(), labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        plain_sgd.step()
        plain_sgd.zero_grad()
        loss.item()

    for _ in range(WARM_UP):
        ours()
        torchs()
    ratios = [milliseconds(ours) / milliseconds(torchs) for _ in range(ROUNDS)]
    backend = distributed.get_backend_config()
    fleet.stop_worker()
    found = {"backend": backend, "losses": [losses[0], losses[-1]]}
    print(json.dumps(found | {"step_ratio": statistics.median(ratios)}))


def milliseconds(step: Callable[[], None]) -> float:
    """Return how long some steps take."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    main()
