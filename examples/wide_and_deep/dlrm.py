"""DLRM: a network of the numbers, and products of all pairs of vectors.

Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation
Systems", 2019 (arXiv 1906.00091).
"""

from collections.abc import Sequence

import torch
from typing_extensions import override

import paramfleet as fleet
from model import network

__all__ = ["Dlrm"]


class Dlrm(torch.nn.Module):
    """Logit of the label from deep ids and numbers.

    Args:
        num_deep_fields: Ids of an example.
        num_dense: Numbers of an example.
        dim: Floats in the vector of an id, and in that of the numbers.
        bottom: Width of each hidden layer below the products, which only numbers pass.
        top: Width of each hidden layer above the products.
        seed: Seeds the first vector of each id.
    """

    def __init__(
        self,
        *,
        num_deep_fields: int,
        num_dense: int,
        dim: int = 8,
        bottom: Sequence[int] = (32,),
        top: Sequence[int] = (64,),
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.deep = fleet.nn.Embedding(
            0, dim, name="deep", initializer=fleet.nn.normal(std=0.1), seed=seed
        )
        self.bottom = network(num_dense, *bottom, dim)
        num_vectors = num_deep_fields + 1
        self.pairs = torch.triu_indices(num_vectors, num_vectors, offset=1)
        self.top = network(dim + self.pairs.shape[1], *top, 1)

    @override
    def forward(
        self, wide_ids: torch.Tensor, deep_ids: torch.Tensor, dense: torch.Tensor
    ) -> torch.Tensor:
        """Return one logit per example.

        Args:
            wide_ids: Crossed ids. Unused: the products replace them.
            deep_ids: int64 ``[B, deep fields]``.
            dense: float32 ``[B, numbers]``.

        Returns:
            float32 ``[B]``.
        """
        numbers = self.bottom(dense)
        vectors = torch.cat([self.deep(deep_ids), numbers.unsqueeze(1)], dim=1)
        first, second = self.pairs
        products = (vectors @ vectors.transpose(1, 2))[:, first, second]
        logits: torch.Tensor = self.top(torch.cat([numbers, products], dim=1)).squeeze(1)
        return logits
