"""What models of clicks have in common: they differ in their networks alone."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from typing_extensions import override

from paramfleet.data.parsing.slots import Slot
from paramfleet.runner.config.settings import CtrParameters, HyperParameters
from paramfleet.runner.models.metrics import Auc
from paramfleet.runner.models.model import Feeds, Model
from paramfleet.runner.models.quality import Calibration, LogLoss, NormalizedEntropy

__all__ = ["ClickModel"]

P = TypeVar("P", bound=CtrParameters)


class ClickModel(Model[P]):
    """A label, slots of one id each, and numbers; judged by the AUC, and how sure it is.

    The network takes ids int64 [B, slots] and numbers float32 [B, numbers], and returns a
    logit an example, float32 [B].
    """

    parameters: ClassVar[type[HyperParameters]] = CtrParameters

    @override
    def create_slots(self) -> list[Slot]:
        numbers = self.hyper.dense_input_dim
        return [
            Slot("click", dense=True),
            *(Slot(str(number)) for number in range(1, self.hyper.sparse_inputs_slots)),
            Slot("dense_feature", "float32", dense=True, width=numbers),
        ]

    @override
    def create_feeds(self, batch: Sequence[torch.Tensor]) -> Feeds:
        label, *ids, numbers = batch  # PaddleRec's readers have a field a slot
        return Feeds((torch.cat(ids, dim=1), numbers), label.squeeze(1).float())

    @override
    def create_loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return binary_cross_entropy_with_logits(outputs, labels)

    @override
    def create_metrics(self) -> dict[str, Any]:
        return {
            "auc": Auc(),
            "log_loss": LogLoss(),
            "normalized_entropy": NormalizedEntropy(),
            "calibration": Calibration(),
        }

    @override
    def update_metrics(
        self, metrics: Mapping[str, Any], outputs: torch.Tensor, labels: torch.Tensor
    ) -> None:
        scores = outputs.sigmoid()
        for metric in metrics.values():
            metric.update(scores, labels)
