"""Layers that multiply the input with itself, beside or below a network.

Wang et al., "DCN V2", 2021 (arXiv 2008.13535).
"""

from dataclasses import dataclass

import torch
from typing_extensions import override

import paramfleet as fleet
from paramfleet.runner import NO_ID, CtrParameters, slot_sums, tower

__all__ = ["DcnParameters", "DcnV2"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DcnParameters(CtrParameters):
    """Those of the crossing layers, beside the sizes of all models of clicks."""

    cross_num: int = 2
    """Crossing layers."""

    is_Stacked: bool = False
    """Whether the network is fed by the crossing layers instead of standing beside them."""


class Cross(torch.nn.Module):
    """Crossing layers: each multiplies the first input into the one before, [B, width]."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(count))

    @override
    def forward(self, first: torch.Tensor) -> torch.Tensor:
        crossed = first
        for layer in self.layers:
            crossed = first * layer(crossed) + crossed
        return crossed


class DcnV2(torch.nn.Module):
    """Logit of a click.

    Args:
        hyper: Sizes.
        seed: Seeds the first vector of each id.
    """

    def __init__(self, hyper: DcnParameters, *, seed: int) -> None:
        super().__init__()
        dim, slots = hyper.sparse_feature_dim, hyper.sparse_inputs_slots - 1
        width = slots * dim + hyper.dense_input_dim
        self.embedding = fleet.nn.Embedding(
            0,
            dim,
            padding_idx=NO_ID,
            initializer=fleet.nn.normal(std=0.01),
            seed=seed,
        )
        self.cross = Cross(width, hyper.cross_num)
        self.deep = tower(width, *hyper.fc_sizes)
        self.is_stacked = hyper.is_Stacked
        beside = 0 if self.is_stacked else width
        self.out = torch.nn.Linear(hyper.fc_sizes[-1] + beside, 1)

    @override
    def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """Return one logit an example, float32 [B].

        Args:
            ids: int64 [B, slots], or [B, slots, ids] with NO_ID where a slot has fewer.
            dense: float32 [B, numbers].
        """
        inputs = torch.cat([slot_sums(self.embedding(ids)).flatten(1), dense], dim=1)
        crossed = self.cross(inputs)
        if self.is_stacked:
            features = self.deep(crossed)
        else:
            features = torch.cat([crossed, self.deep(inputs)], dim=1)
        logits: torch.Tensor = self.out(features).squeeze(1)
        return logits
