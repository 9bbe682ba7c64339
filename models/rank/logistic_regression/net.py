"""One weight an id and one a number."""

import torch
from typing_extensions import override

import paramfleet as fleet
from paramfleet.runner import NO_ID, CtrParameters

__all__ = ["LogisticRegression"]


class LogisticRegression(torch.nn.Module):
    """Logit of a click.

    Args:
        hyper: Sizes.
        seed: Unused by weights that start at 0; every network of the zoo is given one.
    """

    def __init__(self, hyper: CtrParameters, *, seed: int) -> None:
        super().__init__()
        self.ids = fleet.nn.EmbeddingBag(
            hyper.sparse_feature_number,
            1,
            padding_idx=NO_ID,
            mode="sum",
            initializer=fleet.nn.constant(0.0),
            seed=seed,
        )
        self.dense = torch.nn.Linear(hyper.dense_input_dim, 1)

    @override
    def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """Return one logit an example, float32 [B].

        Args:
            ids: int64 [B, slots], or [B, slots, ids] with NO_ID where a slot has fewer.
            dense: float32 [B, numbers].
        """
        logits: torch.Tensor = self.ids(ids.flatten(1)) + self.dense(dense)
        return logits.squeeze(1)
