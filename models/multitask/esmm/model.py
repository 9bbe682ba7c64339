"""multitask/esmm: clicks, and purchases among all impressions."""

from collections.abc import Mapping, Sequence

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid
from typing_extensions import override

from paramfleet import runner

from .net import Esmm, EsmmParameters

__all__ = ["Model"]

_CERTAIN = -1e-6
"""Largest logarithm of a probability, so that the one of its opposite is finite."""


class Model(runner.Model[EsmmParameters]):
    """Two labels of an impression: clicked, and bought."""

    @override
    def create_model(self) -> torch.nn.Module:
        return Esmm(self.hyper, seed=self.config.runner.seed)

    @override
    def create_feeds(self, batch: Sequence[torch.Tensor]) -> runner.Feeds:
        *ids, clicked, bought = batch  # PaddleRec's reader has a field a slot
        shape = (len(clicked), self.hyper.num_field, self.hyper.max_len)
        labels = torch.cat([clicked, bought], dim=1).float()
        return runner.Feeds((torch.cat(ids, dim=1).reshape(shape),), labels)

    @override
    def create_loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        click = binary_cross_entropy_with_logits(outputs[:, 0], labels[:, 0])
        both, bought = _log_of_both(outputs), labels[:, 1]
        neither = torch.log(-torch.expm1(both))
        return click - (bought * both + (1 - bought) * neither).mean()

    @override
    def create_metrics(self) -> dict[str, runner.Auc]:
        return {"auc_ctr": runner.Auc(), "auc_ctcvr": runner.Auc()}

    @override
    def update_metrics(
        self, metrics: Mapping[str, runner.Auc], outputs: torch.Tensor, labels: torch.Tensor
    ) -> None:
        metrics["auc_ctr"].update(outputs[:, 0].sigmoid(), labels[:, 0])
        metrics["auc_ctcvr"].update(_log_of_both(outputs).exp(), labels[:, 1])


def _log_of_both(outputs: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the probability of a click and a purchase, float32 [B]."""
    return logsigmoid(outputs).sum(dim=1).clamp(max=_CERTAIN)
