"""Ids that a worker names by numbers: its books, as far as they came to this server.

A worker that pulls a row again need not send its id again: it names the id by its place
among those that it has sent here. A book is an array of ids. It begins with a pull that
says so, and grows only at its end, so that it has no gaps: a server that has started anew
doesn't know the old numbers, and says so.
"""

import threading

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.errors.served import KnownIdsGoneError
from paramfleet_shared.tables.encoding import MAX_KNOWN_IDS

__all__ = ["KnownIds"]

FIRST_ROOM = 1024
"""Ids that a book has room for at first."""


class _Book:
    """One worker's ids, by number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.ids = np.empty(FIRST_ROOM, np.int64)
        self.size = 0

    def write(self, base: int, ids: NDArray[np.int64]) -> None:
        """Put ids at ``base`` and after; a retry puts them there again."""
        size = max(self.size, base + len(ids))
        if size > len(self.ids):
            grown = np.empty(max(size, 2 * len(self.ids)), np.int64)
            grown[: self.size] = self.ids[: self.size]
            self.ids = grown
        self.ids[base : base + len(ids)] = ids
        self.size = size


class KnownIds:
    """The books of one table, one a worker. Any thread may use it.

    Args:
        table: Named by errors.
        most: Ids in a book.
    """

    def __init__(self, table: str, *, most: int = MAX_KNOWN_IDS) -> None:
        self._table = table
        self._most = most
        self._books: dict[int, _Book] = {}
        self._using = threading.Lock()

    def read(
        self,
        rank: int,
        book: int,
        numbers: NDArray[np.int64],
        others: NDArray[np.int64],
        base: int | None,
    ) -> NDArray[np.int64]:
        """Return the ids that have these numbers, and give some others theirs.

        Args:
            rank: Whose book.
            book: Which of the worker's; a newer one replaces it, from number 0 on.
            numbers: int64 [n].
            others: int64 [m], without numbers before.
            base: The number of the first of ``others``; None if they get none.

        Raises:
            KnownIdsGoneError: if the book isn't here, or not so far.
        """
        with self._using:
            found = self._books.get(rank)
            if base == 0 and not len(numbers) and (found is None or found.number < book):
                found = self._books[rank] = _Book(book)
            gone = found is None or found.number != book
            if (
                found is None
                or gone
                or (base is not None and not self._fits(found, base, others))
            ):
                raise KnownIdsGoneError(table=self._table, rank=rank, book=book)
            if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < found.size:
                raise KnownIdsGoneError(table=self._table, rank=rank, book=book)
            ids = found.ids[numbers]
            if base is not None:
                found.write(base, others)
            return ids

    def forget(self, rank: int) -> None:
        """Drop a worker's book."""
        with self._using:
            self._books.pop(rank, None)

    def _fits(self, book: _Book, base: int, others: NDArray[np.int64]) -> bool:
        return 0 <= base <= book.size and base + len(others) <= self._most
