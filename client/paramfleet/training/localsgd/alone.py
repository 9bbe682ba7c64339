"""LocalSGD of one process without servers: what one worker over servers does, without them.

Its mean is its own progress. Without an outer optimizer that is training as the inner one
does; with one, the outer steps are taken here.

Shape legend: F = values of a fragment.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from paramfleet.training.localsgd.core.choices import settings_of
from paramfleet.training.localsgd.core.ledger import Ledger
from paramfleet.training.localsgd.core.outer import OuterOptimizer
from paramfleet.training.localsgd.core.settings import LocalSgdSettings
from paramfleet.training.localsgd.layout import Layout, refuse_tables, trained_parameters
from paramfleet.training.localsgd.optimizer import LocalSgdOptimizer
from paramfleet.training.modes.base import ModelTables

__all__ = ["AloneSynchronizer", "localsgd_alone"]


@dataclass(frozen=True, slots=True)
class _There:
    """An exchange that has ended."""

    snapshot_F: torch.Tensor

    def wait(self) -> torch.Tensor:
        return self.snapshot_F

    def done(self) -> bool:
        return True


class AloneSynchronizer:
    """The outer optimizer of one worker; nothing travels.

    Args:
        fragments: Values of each fragment.
        settings: The worker's.
    """

    def __init__(self, fragments: Sequence[int], settings: LocalSgdSettings) -> None:
        self.fragments: Sequence[int] = list(fragments)
        self._outer = OuterOptimizer(settings, len(self.fragments))

    def exchange(
        self, fragment: int, snapshot_F: torch.Tensor, delta_F: torch.Tensor
    ) -> _There:
        """Step the snapshot by what this worker learned."""
        return _There(self._outer.step(fragment, snapshot_F, delta_F))

    def mean(self, value: float) -> float:
        """Return the value: it is the mean of all workers'."""
        return value

    def state_dict(self) -> dict[str, Any]:
        """Return the outer momenta."""
        return self._outer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state_dict`` was asked."""
        self._outer.load_state_dict(state)


def localsgd_alone(
    inner: torch.optim.Optimizer, apart: tuple[str, Mapping[str, Any]], tables: ModelTables
) -> LocalSgdOptimizer:
    """Return an optimizer that steps ``inner``, and by itself what workers step together.

    Args:
        inner: The torch optimizer over the model's parameters.
        apart: The family member's flag and its keys.
        tables: What the parameters are.

    Raises:
        StrategyError: if the model has sparse tables.
        LocalSgdSettingsError: if two keys don't go together, or not over servers.
    """
    flag, keys = apart
    refuse_tables(flag, tables)
    settings = settings_of(flag, keys)
    layout = Layout(trained_parameters(inner), settings.fragments)
    synchronizer = AloneSynchronizer(layout.sizes, settings)
    return LocalSgdOptimizer(inner, settings, synchronizer, ledger=Ledger(settings.fragments))
