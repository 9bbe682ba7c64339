"""rank/din: whether a user takes an item, from his history."""

from collections.abc import Mapping, Sequence

import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from typing_extensions import override

from paramfleet import runner

from .net import Din, DinParameters

__all__ = ["Model"]


class Model(runner.Model[DinParameters]):
    """A label of a history and an item."""

    @override
    def create_model(self) -> torch.nn.Module:
        return Din(self.hyper, seed=self.config.runner.seed)

    @override
    def create_feeds(self, batch: Sequence[torch.Tensor]) -> runner.Feeds:
        items, categories, item, category, labels, mask = batch[:6]
        there = mask.flatten(1) == 0
        longest = max(1, int(there.sum(dim=1).max()))
        history = (items[:, :longest], categories[:, :longest], there[:, :longest])
        target = (item.flatten(), category.flatten())
        return runner.Feeds((*history, *target), labels.flatten().float())

    @override
    def create_loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return binary_cross_entropy_with_logits(outputs, labels)

    @override
    def create_metrics(self) -> dict[str, runner.Auc]:
        return {"auc": runner.Auc()}

    @override
    def update_metrics(
        self, metrics: Mapping[str, runner.Auc], outputs: torch.Tensor, labels: torch.Tensor
    ) -> None:
        metrics["auc"].update(outputs.sigmoid(), labels)
