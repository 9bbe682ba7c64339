"""What becomes of the mean of what the workers learned: the outer optimizer.

The workers' mean delta (snapshot - local) is a gradient of the snapshot. ``none`` takes it
whole, which is the mean of the workers' values; SGD and Nesterov step by it as torch's do
(DiLoCo: Douillard et al., 2023, uses Nesterov with rate 0.7 and momentum 0.9; heavy ball is
SlowMo: Wang et al., 2020). Every worker does the same to the same numbers, to the bit.

Shape legend: F = values of a fragment.
"""

from typing import Any

import torch

from paramfleet.training.localsgd.core.settings import LocalSgdSettings

__all__ = ["OuterOptimizer"]


class OuterOptimizer:
    """Steps the snapshots of one worker.

    Args:
        settings: Which optimizer, its rate and momentum.
        num_fragments: Each has a momentum of its own.
    """

    def __init__(self, settings: LocalSgdSettings, num_fragments: int) -> None:
        self._name = settings.outer_optimizer
        self._rate = settings.outer_lr
        self._momentum = settings.outer_momentum
        self._velocities: list[torch.Tensor | None] = [None] * num_fragments

    def step(
        self, fragment: int, snapshot_F: torch.Tensor, delta_F: torch.Tensor
    ) -> torch.Tensor:
        """Return the new snapshot, float32 [F]; the arguments stay as they are.

        Args:
            fragment: Whose momentum is meant.
            snapshot_F: What the workers started from, float32 [F].
            delta_F: The mean of snapshot - local, float32 [F].
        """
        if self._name == "none":
            return snapshot_F - delta_F
        step_F = delta_F
        if self._momentum:
            velocity_F = self._velocities[fragment]
            if velocity_F is None:
                velocity_F = delta_F.clone()
            else:
                velocity_F.mul_(self._momentum).add_(delta_F)
            self._velocities[fragment] = velocity_F
            step_F = velocity_F
            if self._name == "nesterov":
                step_F = delta_F.add(velocity_F, alpha=self._momentum)
        return snapshot_F.add(step_F, alpha=-self._rate)

    def state_dict(self) -> dict[str, Any]:
        """Return the momenta, float32 [F] of each fragment that has stepped."""
        return {
            str(number): velocity_F.clone()
            for number, velocity_F in enumerate(self._velocities)
            if velocity_F is not None
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self._velocities = [None] * len(self._velocities)
        for number, velocity_F in state.items():
            self._velocities[int(number)] = velocity_F.clone()
