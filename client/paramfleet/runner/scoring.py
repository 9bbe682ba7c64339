"""How good a model is on the test files, scored by all workers together."""

from collections.abc import Iterable
from typing import Any

import torch

import paramfleet as fleet
from paramfleet.runner.batches import Batch, test_share
from paramfleet.runner.config.errors import NoExamplesError
from paramfleet.runner.models.model import Model

__all__ = ["score", "score_all"]


def score(
    model: Model[Any], net: torch.nn.Module, batches: Iterable[Batch], device: torch.device
) -> tuple[dict[str, float], int]:
    """Score every n-th batch here, of n workers, and add up what all of them counted.

    A model that judges itself does that instead, and has no examples.

    Every worker has to call it.

    Returns:
        The metrics by name, and how many examples there were; the same on every worker.

    Raises:
        NoExamplesError: if there are none: metrics of nothing say nothing.
    """
    own = model.evaluate(net)
    if own is not None:
        return dict(own), 0
    scores, count = score_all(model, net, test_share(batches), device)
    if not count:
        folder = model.config.runner.test_data_dir
        raise NoExamplesError(key="runner.test_data_dir", folder=folder)
    return scores, count


def score_all(
    model: Model[Any], net: torch.nn.Module, batches: Iterable[Batch], device: torch.device
) -> tuple[dict[str, float], int]:
    """Score this worker's batches, and add up what all workers counted of theirs.

    Every worker has to call it.

    Returns:
        As ``score``.
    """
    metrics = model.create_metrics()
    net.eval()
    count = 0
    for batch in batches:
        feeds = model.create_feeds(batch)
        with torch.no_grad():
            outputs = net(*(tensor.to(device) for tensor in feeds.inputs))
        model.update_metrics(metrics, outputs, feeds.labels.to(device))
        count += feeds.size
    net.train()
    merged = {name: metric.merged() for name, metric in metrics.items()}
    return merged, int(fleet.metrics.sum(count))
