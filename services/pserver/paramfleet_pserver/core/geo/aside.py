"""Columns by place as they were at one moment, read later while others go on to change them.

Nothing is copied at that moment. Whoever is about to change some places puts them aside first,
once each. Where a column is replaced by a longer one, the former one stays as it was.

P = places, C = columns, n = places of a call.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.errors.tables import TableMemoryError
from paramfleet_shared.values.sorting import each_once

__all__ = ["Aside"]

GRANTED_BYTES = 16 << 20
"""Of what is put aside, between two questions for memory."""


class Aside:
    """What is put aside of some columns.

    Args:
        columns: Of whole numbers, of any lengths; a place beyond one's end has 0.
        check: Refuses bytes that there is no memory for.
    """

    def __init__(
        self, columns: Sequence[NDArray[Any]], check: Callable[[int], None] | None
    ) -> None:
        self._columns = tuple(columns)
        self._check = check
        num_places = max((len(column) for column in columns), default=0)
        self._number = np.zeros(num_places, np.int32)
        """Of each place: which of those put aside it is, from 1; 0 for none. [P]"""
        self._kept = [np.empty(0, column.dtype) for column in columns]
        """Of each column, longer than what is put aside."""
        self._num_kept = 0
        self._granted_bytes = 0
        self._error: TableMemoryError | None = None

    def keep(self, places: NDArray[Any]) -> None:
        """Put places, [n], aside that are about to change; some may be the same."""
        places = places[places < len(self._number)]
        places = each_once(places[self._number[places] == 0])
        if self._error is not None or not len(places):
            return
        first, stop = self._num_kept, self._num_kept + len(places)
        if not self._reserve(stop):
            return
        for kept, column in zip(self._kept, self._columns, strict=True):
            kept[first:stop] = _values_of(column, places)
        self._number[places] = np.arange(first + 1, stop + 1)
        self._num_kept = stop

    def read(self, column: int, places: NDArray[Any]) -> NDArray[Any]:
        """Return what a column had in some places, [n].

        Raises:
            TableMemoryError: if there was no memory for what has changed since.
        """
        if self._error is not None:
            raise self._error
        found = _values_of(self._columns[column], places)
        numbers = self._number[np.minimum(places, max(0, len(self._number) - 1))]
        aside = np.flatnonzero((numbers > 0) & (places < len(self._number)))
        found[aside] = self._kept[column][numbers[aside] - 1]
        return found

    def _reserve(self, num: int) -> bool:
        """Return whether there is memory for ``num`` places to be put aside."""
        if all(num <= len(kept) for kept in self._kept):
            return True
        length = min(len(self._number), max(2 * num, 1024))
        num_bytes = length * sum(kept.itemsize for kept in self._kept)
        try:
            if self._check is not None and num_bytes > self._granted_bytes:
                self._granted_bytes = max(num_bytes, GRANTED_BYTES)
                self._check(self._granted_bytes)
        except TableMemoryError as error:
            self._error = error
            self._kept = [kept[:0].copy() for kept in self._kept]
            return False
        for index, kept in enumerate(self._kept):
            self._kept[index] = np.empty(length, kept.dtype)
            self._kept[index][: self._num_kept] = kept[: self._num_kept]
        return True


def _values_of(column: NDArray[Any], places: NDArray[Any]) -> NDArray[Any]:
    """Return what a column has in some places, [n], a copy."""
    found: NDArray[Any] = np.zeros(len(places), column.dtype)
    inside = np.flatnonzero(places < len(column))
    found[inside] = column[places[inside]]
    return found
