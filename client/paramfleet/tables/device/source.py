"""Where a table's rows come from during a pass: the device.

Batches are prepared before the pass begins: which rows each looks up, and where they are. A
lookup finds that by the very array of ids that was prepared. One that was not, such as of two
modules that share a table, is searched for in the ids of the pass.

Shape legend: U = different ids of a lookup, D = row width.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.tables.device.pass_ids import PassIds
from paramfleet.tables.device.stored import put_rows, rows_from
from paramfleet.tables.device.table import DeviceTable
from paramfleet.tables.devices import to_device, to_host
from paramfleet.tables.row_store import RowStore
from paramfleet_shared.tables.rules.record import Moment

if TYPE_CHECKING:
    from paramfleet.tables.sparse import SparseTable

__all__ = ["DeviceSource"]


class DeviceSource:
    """Rows of one table during a pass, a ``RowSource``. The training thread calls it.

    Args:
        rows: Those of the pass.
        beneath: Where they came from, and the others are.
    """

    num_shards = 1
    by_id = False

    def __init__(self, rows: DeviceTable, beneath: RowStore) -> None:
        self.rows = rows
        self.beneath = beneath
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
        if create:
            return self.rows.values(self.places(ids_U))
        return self._looked_at(table, ids_U, offsets)

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

    def fetch(self, ids: PassIds) -> None:
        """Begin a pass: bring the rows to the device that it hasn't from the former one.

        Args:
            ids: Made with those of the former pass.
        """
        self.rows.begin(ids, rows_from(self.beneath, self.rows.spec, ids.new_ids))

    def write_back(self) -> int:
        """Put the rows that were stepped where they came from; return how many.

        Raises:
            CapacityError: if there is no room for new ones; they stay on the device.
        """
        stepped = self.rows.stepped()
        put_rows(self.beneath, self.rows.spec, stepped)
        self.rows.note_taken()
        return len(stepped.ids)

    def places(self, ids: NDArray[np.int64]) -> torch.Tensor:
        """Return where rows are, int64 [U], on the device.

        Raises:
            IdOutsidePassError: if one isn't of the pass.
        """
        for prepared, places in self._prepared:
            if prepared is ids:
                return places
        found = self._pass.places_of(ids, batch=self._batch)
        places = to_device(torch.from_numpy(found), self.rows.device)
        self._prepared.append((ids, places))
        return places

    @property
    def _pass(self) -> PassIds:
        assert self.rows.ids is not None, "a pass has begun"
        return self.rows.ids

    def _looked_at(
        self, table: "SparseTable", ids_U: NDArray[np.int64], offsets: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Return rows that aren't trained: those of the pass, and others from beneath it."""
        found = self._pass.find(ids_U)
        is_here = found >= 0
        values = np.empty((len(ids_U), table.dim), np.float32)
        places = to_device(torch.from_numpy(found[is_here]), self.rows.device)
        values[is_here] = to_host(self.rows.values(places), dtype=torch.float32).numpy()
        others = ids_U[~is_here]
        if len(others):
            values[~is_here] = self.beneath.lookup(table, others, offsets, create=False)
        return values
