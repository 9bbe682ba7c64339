"""One weight an id and one a number."""

from dataclasses import dataclass

import torch
from typing_extensions import override

import paramfleet as fleet
from paramfleet.runner import NO_ID, CtrParameters

__all__ = ["LogisticRegression", "LrParameters"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LrParameters(CtrParameters):
    """Those of pairs of an id and a value, beside the sizes of all models of clicks."""

    num_field: int = 0
    """Pairs of a sample, as PaddleRec's reader yields them; 0 for slots and numbers."""


class LogisticRegression(torch.nn.Module):
    """Logit of a click.

    Args:
        hyper: Sizes.
        seed: Unused by weights that start at 0; every network of the zoo is given one.
    """

    def __init__(self, hyper: LrParameters, *, seed: int) -> None:
        super().__init__()
        self.has_values = bool(hyper.num_field)
        self.ids = fleet.nn.EmbeddingBag(
            0,
            1,
            padding_idx=NO_ID,
            mode="sum",
            initializer=fleet.nn.constant(0.0),
            seed=seed,
        )
        self.dense = torch.nn.Linear(1 if self.has_values else hyper.dense_input_dim, 1)

    @override
    def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """Return one logit an example, float32 [B].

        Args:
            ids: int64 [B, slots], or [B, slots, ids] with NO_ID where a slot has fewer.
            dense: float32 [B, numbers]; with num_field the value of each id.
        """
        if self.has_values:
            weighted: torch.Tensor = self.ids(ids, per_sample_weights=dense)
            weighted += self.dense(torch.zeros_like(dense[:, :1]))
            return weighted.squeeze(1)
        logits: torch.Tensor = self.ids(ids.flatten(1)) + self.dense(dense)
        return logits.squeeze(1)
