"""How good a model is on the test files, scored by all workers together."""

from collections.abc import Iterable
from typing import Any

import torch

import paramfleet as fleet
from paramfleet.runner.batches import Batch, test_share
from paramfleet.runner.model import Model

__all__ = ["score"]


def score(
    model: Model[Any], net: torch.nn.Module, batches: Iterable[Batch], device: torch.device
) -> tuple[dict[str, float], int]:
    """Score every n-th batch here, of n workers, and add up what all of them counted.

    Every worker has to call it.

    Returns:
        The metrics by name, and how many examples there were; the same on every worker.
    """
    metrics = model.create_metrics()
    net.eval()
    count = 0
    for batch in test_share(batches):
        feeds = model.create_feeds(batch)
        with torch.no_grad():
            outputs = net(*(tensor.to(device) for tensor in feeds.inputs))
        model.update_metrics(metrics, outputs, feeds.labels.to(device))
        count += len(feeds.labels)
    net.train()
    merged = {name: metric.merged() for name, metric in metrics.items()}
    return merged, int(fleet.metrics.sum(count))
