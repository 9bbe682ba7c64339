"""Where a table's rows come from during a pass: the device.

Batches are prepared before the pass begins: which rows each looks up, and where they are. A
lookup finds that by the very array of ids that was prepared. One that was not, such as of two
modules that share a table, is searched for in the ids of the pass.

Shape legend: U = different ids of a lookup, D = row width.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.tables.device.pass_ids import PassIds
from paramfleet.tables.device.table import DeviceTable
from paramfleet.tables.devices import to_device, to_host
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.rules.record import Moment

if TYPE_CHECKING:
    from paramfleet.tables.sparse import RowSource, SparseTable

__all__ = ["DeviceSource"]


class DeviceSource:
    """Rows of one table during a pass, a ``RowSource``. The training thread calls it.

    Args:
        rows: Those of the pass.
        beneath: Where the others are.
        admit: Brings rows of ids, int64 [U], to the device, in a pass whose ids aren't known
            before; None where they are.
    """

    num_shards = 1
    by_id = False

    def __init__(
        self,
        rows: DeviceTable,
        beneath: "RowSource",
        *,
        admit: Callable[[NDArray[np.int64]], None] | None = None,
    ) -> None:
        self.rows = rows
        self._beneath = beneath
        self._admit = admit
        self._batch = 0
        self._prepared: list[tuple[NDArray[np.int64], torch.Tensor]] = []

    def begin_batch(
        self, number: int, prepared: Sequence[tuple[NDArray[np.int64], torch.Tensor]]
    ) -> None:
        """Let lookups find what was prepared for a batch.

        Args:
            number: Of the batch in the pass, from 0.
            prepared: Arrays of ids, int64 [U], and the places of their rows, on the device.
        """
        self._batch = number
        self._prepared = list(prepared)

    def lookup(
        self,
        table: "SparseTable",
        ids_U: NDArray[np.int64],
        offsets: NDArray[np.int64],
        *,
        create: bool,
    ) -> NDArray[np.float32] | torch.Tensor:
        """Return rows as ``RowSource`` promises.

        Raises:
            IdOutsidePassError: if one that is trained isn't of the pass.
        """
        del offsets  # of one shard
        if create:
            if self._admit is not None:
                self._admit(ids_U)
            return self.trained_values(ids_U)
        return self._looked_at(table, ids_U)

    def trained_values(self, ids: NDArray[np.int64]) -> torch.Tensor:
        """Return the values of rows that are trained, float32 [U, D], on the device.

        Raises:
            IdOutsidePassError: if one isn't of the pass.
        """
        return self.rows.values(self.places(ids))

    def step(self, ids: NDArray[np.int64], grads: torch.Tensor, moment: Moment) -> None:
        """Let the rule step rows.

        Args:
            ids: int64 [U], each once.
            grads: [U, D], on any device.
            moment: Learning rate and number of the step.

        Raises:
            IdOutsidePassError: if one isn't of the pass; nothing is changed.
        """
        places = self.places(ids)
        self.rows.step(places, grads.to(self.rows.device, torch.float32), moment)

    def places(self, ids: NDArray[np.int64]) -> torch.Tensor:
        """Return where rows are, int64 [U], on the device.

        Raises:
            IdOutsidePassError: if one isn't of the pass.
        """
        for prepared, places in self._prepared:
            if prepared is ids:
                return places
        found = self._search(ids)
        places = to_device(torch.from_numpy(found), self.rows.device)
        self._prepared.append((ids, places))
        return places

    def _search(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where rows are, int64 [U]; raises as ``places``."""
        return self._pass.places_of(ids, batch=self._batch)

    def _find(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.bool_], torch.Tensor]:
        """Return which rows are on the device, bool [U], and their values."""
        found = np.full(len(ids), -1) if self.rows.ids is None else self._pass.find(ids)
        is_here = found >= 0
        places = to_device(torch.from_numpy(found[is_here]), self.rows.device)
        return is_here, self.rows.values(places)

    @property
    def _pass(self) -> PassIds:
        assert self.rows.ids is not None, "a pass has begun"
        return self.rows.ids

    def _looked_at(self, table: "SparseTable", ids_U: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return rows that aren't trained: those of the pass, and others from beneath it."""
        is_here, here = self._find(ids_U)
        values = np.empty((len(ids_U), table.dim), np.float32)
        values[is_here] = to_host(here, dtype=torch.float32).numpy()
        others = ids_U[~is_here]
        if len(others):
            values[~is_here] = self._from_beneath(table, others)
        return values

    def _from_beneath(
        self, table: "SparseTable", ids: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Return rows of ids, int64 [U], that the pass doesn't have: float32 [U, D]."""
        beneath = self._beneath
        unique, inverse, offsets = partition(ids, beneath.num_shards, by_id=beneath.by_id)
        found = beneath.lookup(table, unique, offsets, create=False)
        assert isinstance(found, np.ndarray), "what is beneath is in the host's memory"
        rows: NDArray[np.float32] = found[inverse]
        return rows
