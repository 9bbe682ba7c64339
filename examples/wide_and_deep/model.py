"""Wide and deep: a linear model that remembers beside a network that generalises.

Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016 (arXiv 1606.07792).
The wide part gives every crossed id one weight; the deep part gives every id a vector
and puts a small network on top of the vectors and the numbers.
"""

import itertools
from collections.abc import Sequence

import torch
from typing_extensions import override

import paramfleet as fleet

__all__ = ["WideDeep", "network"]


def network(*widths: int) -> torch.nn.Sequential:
    """Return linear layers from each width to the next, with ReLUs between them."""
    layers: list[torch.nn.Module] = []
    for width_in, width_out in itertools.pairwise(widths):
        layers += [torch.nn.Linear(width_in, width_out), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


class WideDeep(torch.nn.Module):
    """Logit of the label from wide ids, deep ids and numbers.

    Rows of the two tables live on the servers and appear when an id is first seen. An
    unseen wide id weighs 0, an unseen deep id is close to the origin: both say little.

    Args:
        num_deep_fields: Ids of an example on the deep side.
        num_dense: Numbers of an example.
        dim: Floats in the vector of a deep id.
        hidden: Width of each hidden layer.
        seed: Seeds the first vector of each deep id.
    """

    def __init__(
        self,
        *,
        num_deep_fields: int,
        num_dense: int,
        dim: int = 8,
        hidden: Sequence[int] = (64,),
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.wide = fleet.nn.EmbeddingBag(
            0, 1, mode="sum", name="wide", initializer=fleet.nn.constant(0.0)
        )
        self.deep = fleet.nn.Embedding(
            0, dim, name="deep", initializer=fleet.nn.normal(std=0.01), seed=seed
        )
        self.network = network(num_deep_fields * dim + num_dense, *hidden, 1)

    @override
    def forward(
        self, wide_ids: torch.Tensor, deep_ids: torch.Tensor, dense: torch.Tensor
    ) -> torch.Tensor:
        """Return one logit per example.

        Args:
            wide_ids: int64 ``[B, wide fields]``.
            deep_ids: int64 ``[B, deep fields]``.
            dense: float32 ``[B, numbers]``.

        Returns:
            float32 ``[B]``.
        """
        remembered: torch.Tensor = self.wide(wide_ids).squeeze(1)
        inputs = torch.cat([self.deep(deep_ids).flatten(1), dense], dim=1)
        generalised: torch.Tensor = self.network(inputs).squeeze(1)
        return remembered + generalised
