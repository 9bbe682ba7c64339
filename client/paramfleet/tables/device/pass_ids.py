"""The ids of a pass over data, and the place of each one's row on the device.

All ids of a pass are known before it begins, so a batch gets the places of its rows as it is
built, and training searches for nothing. An id that the next pass has, too, keeps its place:
its row stays where it is. The others' places are free then, and new ids take them first.

Sans-io, in the host's memory. Shape legend: n = ids of the pass, U = different ids of a batch.
"""

import threading
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet_shared.errors import ContractError
from paramfleet_shared.tables.rowstore import SlotIndex

__all__ = ["IdOutsidePassError", "IdSet", "PassIds", "PassWithoutIdsError"]


class IdOutsidePassError(ContractError):
    """A lookup names an id that the data of the pass didn't have."""

    code = "contract.id_outside_pass"
    table: str
    id: int
    count: int
    batch: int
    """Its number in the pass, from 0."""

    @override
    def describe(self) -> str:
        return (
            f"table {self.table!r}: id {self.id} of batch {self.batch} is not one of the pass "
            f"({self.count} such in the batch): a pass trains the ids that it knew when it "
            "began: those of its batches that ids= returned, or that modules looked up in the "
            "batch that was watched"
        )


class PassWithoutIdsError(ContractError):
    """The data of a pass has no id of a table."""

    code = "contract.pass_without_ids"
    table: str
    sentence = (
        "the data of the pass has no id of table {table!r}: give it batches that have some"
    )


class IdSet:
    """Different ids, each with a number from 0 in order of first appearance.

    One thread adds. Several may search then: the training looks ids of a pass up while the
    next one is made beside it, from what this one has.
    """

    def __init__(self, table: str) -> None:
        self._index = SlotIndex(table=table)
        self._num = 0
        self._searching = threading.Lock()  # a search leaves marks in the index's own memory

    def __len__(self) -> int:
        return self._num

    @property
    def ids(self) -> NDArray[np.int64]:
        """Return them by number, int64 [n], a view."""
        return self._index.ids()[: self._num]

    def try_to_add(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of each id, int64 [U], new ones behind the others.

        They are the set's when it was told so by ``keep``: one call may be undone, the last.
        """
        return self._index.find(ids, create=True)

    @property
    def num_tried(self) -> int:
        """Return how many there are with those of the last ``try_to_add``."""
        return self._index.num_slots

    def keep(self) -> None:
        """Take what was added for good."""
        self._num = self._index.num_slots

    def find(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of each id, int64 [U], -1 of one that isn't here."""
        with self._searching:
            found = self._index.find(ids, create=False)
        found[found >= self._num] = -1
        return found


class PassIds(NamedTuple):
    """The ids of one pass; made by ``of``."""

    table: str
    known: IdSet
    """[n]"""
    places: NDArray[np.int64]
    """int64 [n]: where the row of each is, from 0, by number."""
    is_new: NDArray[np.bool_]
    """bool [n]: whether the former pass didn't have it, so that its row is to be fetched."""
    capacity: int
    """Places on the device, used or free: at least n."""

    @classmethod
    def of(cls, table: str, known: IdSet, former: "PassIds | None" = None) -> "PassIds":
        """Return the ids of a pass with their places.

        Args:
            table: Its name.
            known: Those of the data.
            former: Of the pass before, whose rows are on the device.

        Raises:
            PassWithoutIdsError: if there are none.
        """
        num = len(known)
        if not num:
            raise PassWithoutIdsError(table=table)
        if former is None:
            return cls(table, known, np.arange(num), np.ones(num, np.bool_), num)
        places = former.find(known.ids)
        is_new = places < 0
        is_free = np.ones(max(num, former.capacity), np.bool_)
        is_free[places[~is_new]] = False
        places[is_new] = np.flatnonzero(is_free)[: np.count_nonzero(is_new)]
        return cls(table, known, places, is_new, len(is_free))

    @property
    def ids(self) -> NDArray[np.int64]:
        """Return the ids by number, int64 [n]."""
        return self.known.ids

    @property
    def new_ids(self) -> NDArray[np.int64]:
        """Return the ids whose rows are to be fetched, int64 [m]."""
        return self.ids[self.is_new]

    def places_of(self, ids: NDArray[np.int64], *, batch: int) -> NDArray[np.int64]:
        """Return where the rows of a batch are, int64 [U].

        Args:
            ids: int64 [U].
            batch: The batch's number, for what is wrong with it.

        Raises:
            IdOutsidePassError: if one isn't of the pass.
        """
        places = self.find(ids)
        is_outside = places < 0
        if is_outside.any():
            raise IdOutsidePassError(
                table=self.table,
                id=int(ids[is_outside][0]),
                count=int(is_outside.sum()),
                batch=batch,
            )
        return places

    def find(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where the rows of ids are, int64 [U], -1 of one that isn't of the pass."""
        numbers = self.known.find(ids)
        places = self.places[numbers]
        places[numbers < 0] = -1
        return places
