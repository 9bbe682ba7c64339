"""Wide and deep: a linear model that remembers beside a network that generalises.

Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016 (arXiv 1606.07792).
"""

import torch
from typing_extensions import override

import paramfleet as fleet
from paramfleet.runner import NO_ID, CtrParameters, slot_sums, tower

__all__ = ["WideDeep"]


class WideDeep(torch.nn.Module):
    """Logit of a click.

    Args:
        hyper: Sizes.
        seed: Seeds the first vector of each id.
    """

    def __init__(self, hyper: CtrParameters, *, seed: int) -> None:
        super().__init__()
        dim, slots = hyper.sparse_feature_dim, hyper.sparse_inputs_slots - 1
        self.wide_ids = fleet.nn.EmbeddingBag(
            0, 1, padding_idx=NO_ID, mode="sum", initializer=fleet.nn.constant(0.0)
        )
        self.wide_dense = torch.nn.Linear(hyper.dense_input_dim, 1)
        self.embedding = fleet.nn.Embedding(
            0, dim, padding_idx=NO_ID, initializer=fleet.nn.normal(std=0.01), seed=seed
        )
        self.deep = tower(slots * dim + hyper.dense_input_dim, *hyper.fc_sizes)
        self.out = torch.nn.Linear(hyper.fc_sizes[-1], 1)

    @override
    def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """Return one logit an example, float32 [B].

        Args:
            ids: int64 [B, slots], or [B, slots, ids] with NO_ID where a slot has fewer.
            dense: float32 [B, numbers].
        """
        wide: torch.Tensor = self.wide_ids(ids.flatten(1)) + self.wide_dense(dense)
        inputs = torch.cat([slot_sums(self.embedding(ids)).flatten(1), dense], dim=1)
        deep: torch.Tensor = self.out(self.deep(inputs))
        return (wide + deep).squeeze(1)
