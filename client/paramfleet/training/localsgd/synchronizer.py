"""Where workers exchange what they learned apart, whoever keeps the new values.

Shape legend: F = values of a fragment.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch

__all__ = ["Averaging", "InPlace", "Landing", "Pending", "Restorable", "Synchronizer"]


class Pending(Protocol):
    """An exchange under way."""

    def wait(self) -> torch.Tensor:
        """Return the new snapshot, flat float32 [F]; call it once.

        Raises:
            FleetError: if the exchange failed or didn't end in time.
        """
        ...


@runtime_checkable
class Landing(Protocol):
    """A pending exchange that workers may end as soon as its result is there."""

    def done(self) -> bool:
        """Return whether ``wait`` would not block."""
        ...


class Synchronizer(Protocol):
    """Where workers exchange what they learned apart."""

    fragments: Sequence[int]
    """Values of each fragment."""

    def exchange(
        self, fragment: int, snapshot_F: torch.Tensor, delta_F: torch.Tensor
    ) -> Pending:
        """Begin an exchange; never blocks on the network.

        Args:
            fragment: Which; all workers exchange fragments in the same order.
            snapshot_F: Where the worker started from, float32 [F]; it isn't written to.
            delta_F: snapshot - local, the outer gradient, float32 [F]; the exchange keeps it.
        """
        ...

    def mean(self, value: float) -> float:
        """Return the mean of the workers' values; waits for them.

        Raises:
            FleetError: if a worker's value didn't come in time.
        """
        ...


@runtime_checkable
class InPlace(Protocol):
    """A synchronizer that may exchange fragments where they are, without a copy of any."""

    is_in_place: bool
    """Whether it does."""

    def num_nonfinite(self, fragment: int, snapshot_F: torch.Tensor) -> int:
        """Return how many values of snapshot - local are NaN or infinite."""
        ...

    def exchange_in_place(self, fragment: int, snapshot_F: torch.Tensor) -> None:
        """Exchange a fragment and wait: parameters and snapshot hold the new one then.

        Args:
            fragment: Which.
            snapshot_F: Where the worker started from, float32 [F]; it is written to.

        Raises:
            FleetError: if the exchange failed.
        """
        ...


@runtime_checkable
class Averaging(Protocol):
    """A synchronizer that averages what no outer optimizer steps: buffers, optimizer state."""

    def average(self, values_F: torch.Tensor) -> Pending:
        """Begin an exchange whose result is the mean of the workers' values, float32 [F].

        Args:
            values_F: float32 [F], as long on all workers; the exchange keeps it.
        """
        ...


@runtime_checkable
class Restorable(Protocol):
    """A synchronizer with state that a checkpoint must hold, such as outer momenta."""

    def state_dict(self) -> dict[str, Any]:
        """Return what ``load_state_dict`` takes: tensors and numbers in dicts."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state_dict`` was asked."""
        ...
