"""multitask/mmoe: income and marital status, learned together."""

from collections.abc import Mapping, Sequence

import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from typing_extensions import override

from paramfleet import runner

from .net import Mmoe, MmoeParameters

__all__ = ["Model"]


class Model(runner.Model[MmoeParameters]):
    """Two labels from a person's answers."""

    @override
    def create_model(self) -> torch.nn.Module:
        return Mmoe(self.hyper, seed=self.config.runner.seed)

    @override
    def create_feeds(self, batch: Sequence[torch.Tensor]) -> runner.Feeds:
        if self.hyper.feature_size:  # PaddleRec's reader
            numbers, income, marital = batch
            return runner.Feeds((numbers,), torch.cat([income, marital], dim=1).float())
        labels, ids = batch
        return runner.Feeds((ids,), labels.float())

    @override
    def create_loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return binary_cross_entropy_with_logits(outputs, labels, reduction="sum") / len(labels)

    @override
    def create_metrics(self) -> dict[str, runner.Auc]:
        return {"auc_income": runner.Auc(), "auc_marital": runner.Auc()}

    @override
    def update_metrics(
        self, metrics: Mapping[str, runner.Auc], outputs: torch.Tensor, labels: torch.Tensor
    ) -> None:
        for task, metric in enumerate(metrics.values()):
            metric.update(outputs[:, task].sigmoid(), labels[:, task])
