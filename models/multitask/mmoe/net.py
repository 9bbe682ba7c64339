"""Experts that all tasks share, and a gate a task that weighs them.

Ma et al., "Modeling Task Relationships in Multi-task Learning with Multi-gate
Mixture-of-Experts", KDD 2018.
"""

from dataclasses import dataclass

import torch
from typing_extensions import override

import paramfleet as fleet
from paramfleet.runner import HyperParameters, tower

from .reader import NUM_FIELDS

__all__ = ["Mmoe", "MmoeParameters"]

NUM_TASKS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class MmoeParameters(HyperParameters):
    """Sizes."""

    feature_size: int = 0
    """Numbers of a sample, as PaddleRec's reader yields them; 0 for ids."""

    embedding_dim: int = 4
    """Floats in the vector of a value."""

    expert_num: int = 8
    """Experts."""

    expert_size: int = 16
    """What an expert says, in floats."""

    tower_size: int = 8
    """Width of a task's own layer."""


class Mmoe(torch.nn.Module):
    """Logits of the tasks.

    Args:
        hyper: Sizes.
        seed: Seeds the first vector of each value.
    """

    def __init__(self, hyper: MmoeParameters, *, seed: int) -> None:
        super().__init__()
        width = hyper.feature_size or NUM_FIELDS * hyper.embedding_dim
        self.embedding = None
        if not hyper.feature_size:
            self.embedding = fleet.nn.Embedding(
                0, hyper.embedding_dim, initializer=fleet.nn.normal(std=0.1), seed=seed
            )
        self.experts = torch.nn.ModuleList(
            tower(width, hyper.expert_size) for _ in range(hyper.expert_num)
        )
        self.gates = torch.nn.ModuleList(
            torch.nn.Linear(width, hyper.expert_num) for _ in range(NUM_TASKS)
        )
        self.towers = torch.nn.ModuleList(
            torch.nn.Sequential(
                tower(hyper.expert_size, hyper.tower_size),
                torch.nn.Linear(hyper.tower_size, 1),
            )
            for _ in range(NUM_TASKS)
        )

    @override
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return a logit a task, float32 [B, tasks].

        Args:
            ids: int64 [B, fields]; with feature_size numbers, float32 [B, numbers].
        """
        inputs = ids if self.embedding is None else self.embedding(ids).flatten(1)
        said = torch.stack([expert(inputs) for expert in self.experts], dim=1)
        logits = []
        for gate, own in zip(self.gates, self.towers, strict=True):
            weights = gate(inputs).softmax(dim=1).unsqueeze(2)
            logits.append(own((weights * said).sum(dim=1)))
        return torch.cat(logits, dim=1)
