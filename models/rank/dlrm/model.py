"""rank/dlrm: clicks, as ``runner.ClickModel`` feeds them, judged by AUC and accuracy."""

from collections.abc import Mapping
from typing import Any

import torch
from typing_extensions import override

from paramfleet import runner

from .net import Dlrm, DlrmParameters

__all__ = ["Model"]


class Model(runner.ClickModel[DlrmParameters]):
    """A network with Criteo's feeds, cross entropy, the AUC and the accuracy."""

    @override
    def create_model(self) -> torch.nn.Module:
        return Dlrm(self.hyper, seed=self.config.runner.seed)

    @override
    def create_metrics(self) -> dict[str, Any]:
        return {"auc": runner.Auc(), "accuracy": runner.Accuracy()}

    @override
    def update_metrics(
        self, metrics: Mapping[str, Any], outputs: torch.Tensor, labels: torch.Tensor
    ) -> None:
        for metric in metrics.values():
            metric.update(outputs.sigmoid(), labels)
