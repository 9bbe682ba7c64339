"""What models of clicks have in common: they differ in their networks alone."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, pad
from typing_extensions import override

from paramfleet.data.parsing.slots import Slot
from paramfleet.runner.config.settings import CtrParameters, HyperParameters
from paramfleet.runner.models.layers import NO_ID
from paramfleet.runner.models.metrics import Auc
from paramfleet.runner.models.model import Feeds, Model
from paramfleet.runner.models.quality import Calibration, LogLoss, NormalizedEntropy

__all__ = ["ClickModel"]

P = TypeVar("P", bound=CtrParameters)


class ClickModel(Model[P]):
    """A label, slots of ids, and numbers; judged by the AUC, and how sure it is.

    The network takes ids int64 [B, slots] and numbers float32 [B, numbers], and returns a
    logit an example, float32 [B]. Where an example has several ids of a slot, or none, the ids
    are [B, slots, most], with ``NO_ID`` where there is none: the network sums a slot's vectors
    (``slot_sums``).
    """

    parameters: ClassVar[type[HyperParameters]] = CtrParameters
    pads_ids: ClassVar[bool] = True

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
        return Feeds((self.join_slots(ids), numbers), label.squeeze(1).float())

    def join_slots(self, fields: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the ids of all slots, [B, slots], or [B, slots, most]: see the class.

        Args:
            fields: A field for each slot, or one for all of them, int64 [B, ids].
        """
        slots = self.hyper.sparse_inputs_slots - 1
        most = max(field.shape[1] for field in fields)
        if len(fields) > 1 and most > 1:
            return torch.stack(
                [pad(field, (0, most - field.shape[1]), value=NO_ID) for field in fields], dim=1
            )
        ids = fields[0] if len(fields) == 1 else torch.cat(list(fields), dim=1)
        if len(fields) == 1 and ids.shape[1] != slots and ids.shape[1] % slots == 0:
            return ids.view(len(ids), slots, -1)
        return ids.unsqueeze(2) if (ids == NO_ID).any() else ids

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
