"""What the networks of several models share: towers, and slots with any number of ids.

Shape legend: B = examples, S = slots, W = ids of the slot that has most.
"""

import itertools

import torch

__all__ = ["NO_ID", "slot_sums", "tower"]

NO_ID = -(2**63)
"""Stands where a slot has fewer ids than another one of its batch: a ``padding_idx``."""


def slot_sums(vectors: torch.Tensor) -> torch.Tensor:
    """Return a vector for each slot, the sum over its ids, float32 [B, S, dim].

    Args:
        vectors: Of an ``Embedding`` with ``padding_idx=NO_ID``, for the ids of a
            ``ClickModel``: [B, S, dim] where each slot has one id, else [B, S, W, dim].
    """
    return vectors.sum(dim=2) if vectors.dim() == 4 else vectors


def tower(*widths: int) -> torch.nn.Sequential:
    """Return linear layers from each width to the next, a ReLU after each."""
    layers: list[torch.nn.Module] = []
    for width_in, width_out in itertools.pairwise(widths):
        layers += [torch.nn.Linear(width_in, width_out), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers)
