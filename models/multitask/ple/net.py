"""Experts of each task beside experts that all share, in levels.

Tang et al., "Progressive Layered Extraction", RecSys 2020.
"""

from dataclasses import dataclass

import torch
from typing_extensions import override

import paramfleet as fleet
from paramfleet.runner import HyperParameters, tower
from paramfleet_shared.settings.config import check_ranges

__all__ = ["Experts", "Level", "Ple", "PleParameters"]

NUM_TASKS = 2
_RANGES: dict[str, tuple[float, float]] = {
    "num_field": (1, 1_000_000),
    "embedding_dim": (1, 1 << 20),
    "exp_per_task": (1, 1000),
    "shared_num": (1, 1000),
    "level_number": (1, 1000),
    "expert_size": (1, 1 << 20),
    "tower_size": (1, 1 << 20),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PleParameters(HyperParameters):
    """Sizes.

    Raises:
        SettingError: if a value is outside its documented range.
    """

    feature_size: int = 0
    """Numbers of a sample, as PaddleRec's reader yields them; 0 for ids."""

    num_field: int = 39
    """Ids of a sample."""

    embedding_dim: int = 4
    """Floats in the vector of a value."""

    exp_per_task: int = 3
    """Experts of each task, in each level."""

    shared_num: int = 2
    """Experts that the tasks share, in each level."""

    level_number: int = 1
    """Levels."""

    expert_size: int = 16
    """Width of an expert's output."""

    tower_size: int = 8
    """Width of a task's own layer."""

    def __post_init__(self) -> None:
        check_ranges(self, _RANGES)


class Experts(torch.nn.Module):
    """Networks of one layer over the same input.

    Args:
        width: Floats of an input.
        size: Floats of an output.
        count: How many there are.
    """

    def __init__(self, width: int, size: int, count: int) -> None:
        super().__init__()
        self.each = torch.nn.ModuleList(tower(width, size) for _ in range(count))

    @override
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return their outputs, float32 [B, count, size].

        Args:
            inputs: float32 [B, width].
        """
        return torch.stack([expert(inputs) for expert in self.each], dim=1)


class Level(torch.nn.Module):
    """Experts, and gates that weigh them: a task's its own and the shared, the last's all.

    Args:
        width: Floats of an input.
        hyper: Sizes.
        is_last: Whether no level is above, so that the shared output isn't needed.
    """

    def __init__(self, width: int, hyper: PleParameters, *, is_last: bool) -> None:
        super().__init__()
        counts = [hyper.exp_per_task] * NUM_TASKS + [hyper.shared_num]
        self.experts = torch.nn.ModuleList(
            Experts(width, hyper.expert_size, count) for count in counts
        )
        seen = [hyper.exp_per_task + hyper.shared_num] * NUM_TASKS
        if not is_last:
            seen.append(sum(counts))
        self.gates = torch.nn.ModuleList(torch.nn.Linear(width, count) for count in seen)

    @override
    def forward(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return an output a task, and the shared one behind them below other levels.

        Args:
            inputs: float32 [B, width] each, one a task, then the shared one.
        """
        pairs = zip(self.experts, inputs, strict=True)
        *own, shared = [experts(each) for experts, each in pairs]
        seen = [torch.cat([each, shared], dim=1) for each in own]
        seen.append(torch.cat([*own, shared], dim=1))
        found = []  # the last level has no gate for all experts
        for gate, each, outputs in zip(self.gates, inputs, seen, strict=False):
            weights = gate(each).softmax(dim=1).unsqueeze(2)
            found.append((weights * outputs).sum(dim=1))
        return found


class Ple(torch.nn.Module):
    """Logits of the tasks.

    Args:
        hyper: Sizes.
        seed: Seeds the first vector of each value.
    """

    def __init__(self, hyper: PleParameters, *, seed: int) -> None:
        super().__init__()
        width = hyper.feature_size or hyper.num_field * hyper.embedding_dim
        self.embedding = None
        if not hyper.feature_size:
            self.embedding = fleet.nn.Embedding(
                0, hyper.embedding_dim, initializer=fleet.nn.normal(std=0.1), seed=seed
            )
        widths = [width] + [hyper.expert_size] * (hyper.level_number - 1)
        self.levels = torch.nn.ModuleList(
            Level(each, hyper, is_last=number == hyper.level_number)
            for number, each in enumerate(widths, start=1)
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
        outputs = [inputs] * (NUM_TASKS + 1)
        for level in self.levels:
            outputs = level(outputs)
        pairs = zip(self.towers, outputs, strict=True)
        return torch.cat([own(each) for own, each in pairs], dim=1)
