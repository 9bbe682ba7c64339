"""recall/ncf: whether a user and an item belong together."""

from collections.abc import Mapping, Sequence

import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from typing_extensions import override

from paramfleet import runner

from .net import Ncf, NcfParameters

__all__ = ["Model"]


class Model(runner.Model[NcfParameters]):
    """A label of a user and an item."""

    @override
    def create_model(self) -> torch.nn.Module:
        return Ncf(self.hyper, seed=self.config.runner.seed)

    @override
    def create_feeds(self, batch: Sequence[torch.Tensor]) -> runner.Feeds:
        users, items, labels = (field.squeeze(1) for field in batch)
        return runner.Feeds((users, items), labels.float())

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
