"""Crossed features of every order, vector by vector, beside a network and a linear part.

Lian et al., "xDeepFM", 2018 (arXiv 1803.05170). Numbers take part as PaddleRec has it: each
has a vector that it scales.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from typing_extensions import override

import paramfleet as fleet
from paramfleet.runner import NO_ID, CtrParameters, slot_sums, tower
from paramfleet_shared.settings.config import SettingError

__all__ = ["CompressedInteraction", "XDeepFm", "XDeepFmParameters"]


@dataclass(frozen=True, kw_only=True, slots=True)
class XDeepFmParameters(CtrParameters):
    """Those of its two parts, beside the sizes of all models of clicks.

    Raises:
        SettingError: if a list is empty, or has a width below 1.
    """

    layer_sizes_cin: tuple[int, ...] = (128, 32)
    """Crossed features of each order, from the second."""

    layer_sizes_dnn: tuple[int, ...] = (512, 256, 128)
    """Width of each hidden layer of the network; fc_sizes isn't read."""

    def __post_init__(self) -> None:
        CtrParameters.__post_init__(self)
        for name, sizes in (("layer_sizes_cin", self.layer_sizes_cin),
                            ("layer_sizes_dnn", self.layer_sizes_dnn)):  # fmt: skip
            if min(sizes, default=0) < 1:
                raise SettingError(name=name, value=sizes, rule="a list of widths from 1")


class CompressedInteraction(torch.nn.Module):
    """Features of each order: weighted products of the order before with the first.

    Args:
        fields: Vectors of an example.
        sizes: Features of each order, from the second.
    """

    def __init__(self, fields: int, sizes: Sequence[int]) -> None:
        super().__init__()
        widths = [fields, *sizes[:-1]]
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(fields * before, size, bias=False)
            for before, size in zip(widths, sizes, strict=True)
        )

    @override
    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return the sums of the features, float32 [B, all sizes].

        Args:
            vectors: float32 [B, fields, dim].
        """
        batch, fields, dim = vectors.shape
        first = crossed = vectors.transpose(1, 2).reshape(-1, fields)
        sums = []
        for layer in self.layers:
            crossed = _weighted_products(first, crossed, layer.get_parameter("weight"))
            sums.append(crossed.view(batch, dim, -1).sum(dim=1))
        return torch.cat(sums, dim=1)


def _weighted_products(
    first: torch.Tensor, crossed: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    """Return weighted sums of all products of two numbers, float32 [n, size].

    What lies between is the products, or where there are fewer of them the sums over the
    second factor: it is the largest tensor of the model, and its traffic most of the time.

    Args:
        first: float32 [n, fields].
        crossed: float32 [n, before].
        weight: float32 [size, fields * before].
    """
    size, (_, fields), (_, before) = len(weight), first.shape, crossed.shape
    if size < before:
        halves = crossed @ weight.view(size * fields, before).T
        return (halves.view(-1, size, fields) * first.unsqueeze(1)).sum(dim=2)
    products = first.unsqueeze(2) * crossed.unsqueeze(1)
    return products.flatten(1) @ weight.T


class XDeepFm(torch.nn.Module):
    """Logit of a click.

    Args:
        hyper: Sizes.
        seed: Seeds the first vector of each id.
    """

    def __init__(self, hyper: XDeepFmParameters, *, seed: int) -> None:
        super().__init__()
        dim, slots = hyper.sparse_feature_dim, hyper.sparse_inputs_slots - 1
        numbers = hyper.dense_input_dim
        self.first_ids = fleet.nn.EmbeddingBag(
            0, 1, padding_idx=NO_ID, mode="sum", initializer=fleet.nn.constant(0.0)
        )
        self.first_dense = torch.nn.Linear(numbers, 1)
        self.embedding = fleet.nn.Embedding(
            0, dim, padding_idx=NO_ID, initializer=fleet.nn.normal(std=0.03), seed=seed
        )
        self.dense_vectors = torch.nn.Parameter(0.03 * torch.randn(numbers, dim))
        self.cross = CompressedInteraction(slots + numbers, hyper.layer_sizes_cin)
        self.deep = tower((slots + numbers) * dim, *hyper.layer_sizes_dnn)
        width = sum(hyper.layer_sizes_cin) + hyper.layer_sizes_dnn[-1]
        self.out = torch.nn.Linear(width, 1)

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
        features = torch.cat([self.cross(vectors), self.deep(vectors.flatten(1))], dim=1)
        logits: torch.Tensor = (first + self.out(features)).squeeze(1)
        return logits
