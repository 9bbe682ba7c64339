"""Two towers: two networks whose vectors are multiplied, as for retrieval.

Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations",
RecSys 2019. Here the label is known for each pair, so the product is the logit of it.
"""

from collections.abc import Sequence

import torch
from typing_extensions import override

import paramfleet as fleet
from model import network

__all__ = ["TwoTower"]


class TwoTower(torch.nn.Module):
    """Logit of the label from deep ids and numbers.

    The first half of the fields and the numbers go through one network (of a flight: when it
    leaves), the other fields through the other one (what flies, from where to where). A served
    system computes the vectors of one side ahead of time.

    Args:
        num_deep_fields: Ids of an example.
        num_dense: Numbers of an example.
        dim: Floats in the vector of an id.
        hidden: Width of each hidden layer of both networks.
        joint: Floats in the two vectors that are multiplied.
        seed: Seeds the first vector of each id.
    """

    def __init__(
        self,
        *,
        num_deep_fields: int,
        num_dense: int,
        dim: int = 8,
        hidden: Sequence[int] = (64,),
        joint: int = 16,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.deep = fleet.nn.Embedding(
            0, dim, name="deep", initializer=fleet.nn.normal(std=0.1), seed=seed
        )
        self.num_left = num_deep_fields // 2
        num_right = num_deep_fields - self.num_left
        self.left = network(self.num_left * dim + num_dense, *hidden, joint)
        self.right = network(num_right * dim, *hidden, joint)
        self.bias = torch.nn.Parameter(torch.zeros(()))

    @override
    def forward(
        self, wide_ids: torch.Tensor, deep_ids: torch.Tensor, dense: torch.Tensor
    ) -> torch.Tensor:
        """Return one logit per example.

        Args:
            wide_ids: Crossed ids. Unused: most of them belong to both sides.
            deep_ids: int64 ``[B, deep fields]``.
            dense: float32 ``[B, numbers]``.

        Returns:
            float32 ``[B]``.
        """
        vectors = self.deep(deep_ids)
        left = self.left(torch.cat([vectors[:, : self.num_left].flatten(1), dense], dim=1))
        right = self.right(vectors[:, self.num_left :].flatten(1))
        logits: torch.Tensor = (left * right).sum(dim=1) + self.bias
        return logits
