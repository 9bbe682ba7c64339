"""match/dssm: which of its documents answers a query."""

from collections.abc import Mapping, Sequence

import torch
from torch.nn.functional import cross_entropy
from typing_extensions import override

from paramfleet import runner

from .net import Dssm, DssmParameters

__all__ = ["Model"]


class Model(runner.Model[DssmParameters]):
    """A query, the document that answers it, and others."""

    @override
    def create_model(self) -> torch.nn.Module:
        return Dssm(self.hyper)

    @override
    def create_feeds(self, batch: Sequence[torch.Tensor]) -> runner.Feeds:
        query, *documents = (text.float() for text in batch)
        labels = torch.zeros(len(query), len(documents))
        labels[:, 0] = 1
        return runner.Feeds((query, torch.stack(documents, dim=1)), labels)

    @override
    def create_loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self.hyper.gamma * outputs, labels.argmax(dim=1))

    @override
    def create_metrics(self) -> dict[str, runner.Auc]:
        return {"auc": runner.Auc()}

    @override
    def update_metrics(
        self, metrics: Mapping[str, runner.Auc], outputs: torch.Tensor, labels: torch.Tensor
    ) -> None:
        metrics["auc"].update((outputs + 1) / 2, labels)
