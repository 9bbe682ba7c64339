"""rank/dnn: what it is fed, what it minimises, how it is judged."""

from collections.abc import Mapping, Sequence

import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from typing_extensions import override

import paramfleet as fleet
from paramfleet import runner

from .net import Dnn

__all__ = ["Model"]


class Model(runner.Model[runner.CtrParameters]):
    """Clicks from ids and numbers."""

    @override
    def create_model(self) -> torch.nn.Module:
        return Dnn(self.hyper, seed=self.config.runner.seed)

    @override
    def create_slots(self) -> list[fleet.data.Slot]:
        numbers = self.hyper.dense_input_dim
        return [
            fleet.data.Slot("click", dense=True),
            *(fleet.data.Slot(str(n)) for n in range(1, self.hyper.sparse_inputs_slots)),
            fleet.data.Slot("dense_feature", "float32", dense=True, width=numbers),
        ]

    @override
    def create_feeds(self, batch: Sequence[torch.Tensor]) -> runner.Feeds:
        label, *slots, dense = batch
        return runner.Feeds((torch.cat(slots, dim=1), dense), label.squeeze(1).float())

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
