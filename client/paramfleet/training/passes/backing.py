"""What passes over data ask of a mode: rows with all their columns, and their way back."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet.tables.device.source import DeviceSource
from paramfleet.tables.device.table import DeviceRows
from paramfleet.tables.sparse import RowSource
from paramfleet.transport.device_group import DeviceGroup
from paramfleet_shared.errors import ContractError
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["Eviction", "PassBacking", "PassOpenError", "call_of"]


class PassOpenError(ContractError):
    """Something was asked for that can't be while rows are on a device."""

    code = "contract.pass_open"
    function: str
    """Of ``fleet``, or what was to be done."""

    @override
    def describe(self) -> str:
        return (
            f"{call_of(self.function)} during a pass: rows are on the device; do this when the "
            "loop over the pass's batches has ended"
        )


def call_of(function: str) -> str:
    """Return how a message names a function of ``fleet``; other words stay as they are."""
    return f"fleet.{function}()" if function.isidentifier() else function


class Eviction(Protocol):
    """Removes rows between two passes, as ``strategy.eviction_configs`` says."""

    def find_due(self, before: int, after: int) -> bool:
        """Return whether rows of some tables are to be looked at, and note of which.

        Args:
            before: Steps that had been taken when that was asked last.
            after: And those now.
        """
        ...

    def evict(self) -> None:
        """Remove the rows of these tables that are to go."""
        ...


class _NoEviction:
    """Every row stays."""

    def find_due(self, before: int, after: int) -> bool:
        """Return False."""
        del before, after
        return False

    def evict(self) -> None:
        """Do nothing."""


class PassBacking(ABC):
    """Where the rows of passes come from. The training thread calls it, but ``read``."""

    only_in_passes = False
    """Whether nothing is trained outside of a pass."""
    eviction: Eviction = _NoEviction()
    """Which rows go between two passes; the optimizer says so."""

    @property
    def is_behind(self) -> bool:
        """Whether what the script asks for was done by a former incarnation of this worker."""
        return False

    @abstractmethod
    def specs(self) -> dict[str, TableSpec]:
        """Return the tables with the rules that step their rows, by name.

        Raises:
            OptimizerNotServedError: if rows are stepped by no rule of the pservers.
        """

    @abstractmethod
    def beneath(self, table: str) -> RowSource:
        """Return where rows of a table are that no pass has."""

    @abstractmethod
    def check_no_pass(self, function: str) -> None:
        """Pass if no rows are on a device.

        Args:
            function: Of ``fleet``, for the error.

        Raises:
            PassOpenError: if some are.
        """

    def prepare(self, device: torch.device) -> None:
        """Begin to run passes: what is held of former ones may have changed.

        Args:
            device: Where rows will be.
        """
        del device  # alone, rows are where they were

    def kept(self, device: torch.device) -> dict[str, DeviceSource]:
        """Return rows that are on the device since former passes, if they are current.

        Called after ``prepare``.

        Args:
            device: Where rows will be.
        """
        del device
        return {}  # alone, rows may have been trained without passes

    def keep(self, sources: Mapping[str, DeviceSource]) -> None:
        """Let rows of passes that have ended stay on the device for the next ones."""
        del sources

    def open(self, *, trains: bool) -> bool:
        """Begin a pass; return False if its batches are to be left out, since it was trained.

        Args:
            trains: Whether the model is in training mode.
        """
        del trains
        return True

    @abstractmethod
    def read(self, wanted: Mapping[str, NDArray[np.int64]]) -> dict[str, DeviceRows]:
        """Return rows as they are, new ones where there is none; it makes none.

        Any thread may call it, while none of the rows is being written back.

        Args:
            wanted: Ids, int64 [n], each once, by table.
        """

    def free_rows(self, table: str) -> NDArray[np.int64] | None:
        """Return how many rows each shard of a table may still get: int64 [shards].

        What passes admit is subtracted from it. None where nothing limits them.
        """
        del table
        return None

    @abstractmethod
    def attach(self, sources: Mapping[str, DeviceSource]) -> None:
        """Let lookups and steps use the rows on the device, of these tables."""

    @property
    def group(self) -> DeviceGroup | None:
        """Return the workers that train passes together; None where there is one."""
        return None

    def end_batch(self) -> None:
        """Take part in the step of the batch that ends, if the others need that."""
        return  # alone, nobody waits

    @abstractmethod
    def commit(self) -> int:
        """End the pass: what was stepped goes back; return how many rows that were.

        Without a pass it does nothing.

        Raises:
            CapacityError: if there is no room for new rows; they stay on the device.
            FleetError: if they can't be written back.
        """

    def is_eviction_due(self) -> bool:
        """Return whether ``evict`` is to be called now, behind a pass that has ended.

        No rows may be on the device then.
        """
        return False

    def evict(self) -> None:
        """Remove rows that are to go.

        Raises:
            FleetError: if they can't be removed.
        """
        return  # nothing is due

    @abstractmethod
    def abandon(self) -> None:
        """End a pass that failed."""

    @abstractmethod
    def release(self) -> None:
        """Let lookups use what is beneath again."""
