"""A factorisation machine and a network over the same vectors.

Guo et al., "DeepFM", 2017 (arXiv 1703.04247). Numbers take part as PaddleRec has it: each
has a vector that it scales.
"""

import torch
from typing_extensions import override

import paramfleet as fleet
from paramfleet.runner import NO_ID, CtrParameters, slot_sums, tower

__all__ = ["DeepFm"]


class DeepFm(torch.nn.Module):
    """Logit of a click.

    Args:
        hyper: Sizes.
        seed: Seeds the first vector of each id.
    """

    def __init__(self, hyper: CtrParameters, *, seed: int) -> None:
        super().__init__()
        dim, slots = hyper.sparse_feature_dim, hyper.sparse_inputs_slots - 1
        numbers = hyper.dense_input_dim
        self.first_ids = fleet.nn.EmbeddingBag(
            0, 1, padding_idx=NO_ID, mode="sum", initializer=fleet.nn.constant(0.0)
        )
        self.first_dense = torch.nn.Linear(numbers, 1)
        self.embedding = fleet.nn.Embedding(
            0, dim, padding_idx=NO_ID, initializer=fleet.nn.normal(std=0.01), seed=seed
        )
        self.dense_vectors = torch.nn.Parameter(0.01 * torch.randn(numbers, dim))
        self.deep = tower((slots + numbers) * dim, *hyper.fc_sizes)
        self.out = torch.nn.Linear(hyper.fc_sizes[-1], 1)

    @override
    def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """Return one logit an example, float32 [B].

        Args:
            ids: int64 [B, slots], or [B, slots, ids] with NO_ID where a slot has fewer.
            dense: float32 [B, numbers].
        """
        first: torch.Tensor = self.first_ids(ids.flatten(1)) + self.first_dense(dense)
        scaled = dense.unsqueeze(2) * self.dense_vectors
        vectors = torch.cat([slot_sums(self.embedding(ids)), scaled], dim=1)
        pairs = vectors.sum(1).square() - vectors.square().sum(1)
        second = 0.5 * pairs.sum(1, keepdim=True)
        deep: torch.Tensor = self.out(self.deep(vectors.flatten(1)))
        return (first + second + deep).squeeze(1)
