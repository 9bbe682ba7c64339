"""Which rows of a pass are trained, of a table that doesn't give every id a row.

An id without a row has a place on the device as any other: its first value is there, which
nothing changes until it is admitted. That is in the step in which it comes for the n-th time,
counted from how often it had come before the pass, as the pservers say. What waits, and how
often it came, is told to them with the rows of the pass; what the pass admitted is a row that
it has stepped.

Shape legend: n = ids of the pass, U = different ids of a batch.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.tables.devices import to_device, to_host
from paramfleet_shared.tables.rows.admission import HAS_ROW, NEVER, limited
from paramfleet_shared.tables.rows.routing import route
from paramfleet_shared.tables.spec import EntrySpec

__all__ = ["BYTES_WAITING", "CameIds", "PassAdmission"]

BYTES_WAITING = 8
"""Of a place on the device, beside its row."""


class CameIds(NamedTuple):
    """Ids that came without a row."""

    ids: NDArray[np.int64]
    """int64 [n], each once; of a table that counts them, else none."""
    uses: NDArray[np.int32]
    """int32 [n]: in how many steps each came before it got a row."""
    refused: int
    """How often any id of the table came and got none."""


class PassAdmission:
    """Decides which ids of a pass get a row. The thread that owns the rows calls it.

    Args:
        entry: The table's.
        device: Where the rows are.
        free_rows: int64 [shards], rows that each shard of the job may still get; those that the
            pass admits are subtracted. None where nothing limits them.
    """

    def __init__(
        self, entry: EntrySpec, *, device: torch.device, free_rows: NDArray[np.int64] | None
    ) -> None:
        assert (free_rows is not None) == bool(entry.max_rows), "rows may be limited"
        self._counts = entry.kind == "count_filter"
        self._device = device
        self.free_rows = free_rows
        self._waits = torch.zeros(0, dtype=torch.int32, device=device)
        """By place: in how many steps the id must come to get a row in the last one."""
        self._came = torch.zeros(0, dtype=torch.int32, device=device)
        """By place: steps in which it came and got none, since that was taken last."""

    def begin(self, places: torch.Tensor, waits: NDArray[np.int32], *, capacity: int) -> None:
        """Take in ids that are new to the device.

        Args:
            places: int64 [m], where their rows are.
            waits: int32 [m], as ``Admission.waits`` says them; 0 of an id with a row.
            capacity: Places there are.
        """
        more = capacity - len(self._waits)
        if more > 0:
            none = torch.zeros(more, dtype=torch.int32, device=self._device)
            self._waits, self._came = (
                torch.cat([self._waits, none]),
                torch.cat([self._came, none]),
            )
        self._waits[places] = to_device(torch.from_numpy(waits), self._device)
        self._came[places] = 0

    def decide(self, places: torch.Tensor, keys: NDArray[np.uint64]) -> torch.Tensor:
        """Return which ids of a step have a row, or get one in it: bool [U].

        Args:
            places: int64 [U], each once.
            keys: uint64, the id of each place; read only where rows are limited.
        """
        left = self._waits.index_select(0, places)
        admitted = left <= 1
        if self.free_rows is not None:
            self._limit(places, keys, admitted, left == 1)
        waiting = (left > 1) & (left < NEVER)
        left = torch.where(admitted, HAS_ROW, left - waiting.to(torch.int32))
        self._waits.index_copy_(0, places, left)
        self._came.index_add_(0, places, (~admitted).to(torch.int32))
        return admitted

    def came(self, ids: NDArray[np.int64], places: NDArray[np.int64]) -> CameIds:
        """Return which ids of the pass came without a row since that was taken last.

        Args:
            ids: int64 [n], of the pass.
            places: int64 [n], theirs.
        """
        uses = to_host(self._came, dtype=torch.int32).numpy()[places]
        some = np.flatnonzero(uses) if self._counts else np.empty(0, np.int64)
        return CameIds(ids[some], uses[some], int(uses.sum()))

    def note_taken(self) -> None:
        """Count anew: who counts them has been told."""
        self._came.zero_()

    def _limit(
        self,
        places: torch.Tensor,
        keys: NDArray[np.uint64],
        admitted: torch.Tensor,
        is_new: torch.Tensor,
    ) -> None:
        """Admit no more new rows than there is room for."""
        assert self.free_rows is not None, "they are limited"
        new = is_new.nonzero().reshape(-1)
        if not len(new):
            return
        where = to_host(places.index_select(0, new), dtype=torch.int64).numpy()
        fits = limited(keys[where], self.free_rows)
        got = route(keys[where][fits].view(np.int64), len(self.free_rows))
        self.free_rows -= np.diff(got.offsets)
        admitted[new] = to_device(torch.from_numpy(fits), self._device)
