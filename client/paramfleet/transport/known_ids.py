"""Ids that the pservers know by short numbers, so that they needn't travel again.

A worker keeps a book of the ids that it has sent of a table, and so does each pserver of
those that came to it: the n-th new one is number n there. What a pull asks for again
travels as its number, in a byte or so where a hashed id takes six. A pull that brings new
ids says where in the book they begin, and they count once all pservers have answered it.
If one has lost the book, a new one is begun. Sans-io.

Shape legend: U = unique ids, K = known ones of them, S = shards.
"""

import threading
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.tables.encoding import MAX_KNOWN_IDS, sort_within_shards
from paramfleet_shared.tables.rowstore import RowColumn, SlotIndex

__all__ = ["KnownIds", "Named", "NamedPart"]

_PATIENCE = 64
"""Pulls after which one that brought new ids and had no end has failed."""


class NamedPart(NamedTuple):
    """A pserver's part of named rows: in each shard known ones, then others."""

    numbers: NDArray[np.int64]
    """int64 [K]: of the known ones, rising inside their shard."""
    known: NDArray[np.int64]
    """int64 [S + 1]: the shards' bounds in ``numbers``."""
    others: NDArray[np.int64]
    """int64 [U - K]: ids."""
    base: int | None
    """The number of the first of ``others``; None if they get none."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Named:
    """Rows of a pull with the numbers of those that are known."""

    ids: NDArray[np.int64]
    """int64 [U]: in the order in which they travel."""
    order: NDArray[np.int64]
    """int64 [U]: where each of them stood."""
    book: int
    parts: tuple[NamedPart, ...]
    """One a pserver."""


class KnownIds:
    """A worker's book of one table. Any thread may use it.

    Args:
        table: Its name.
        placement: Who hosts what.
        incarnation: Of this worker, so that its books differ from its former self's.
        most: Ids that a pserver's book holds.
    """

    def __init__(
        self,
        table: str,
        placement: Placement,
        *,
        incarnation: int = 0,
        most: int = MAX_KNOWN_IDS,
    ) -> None:
        self._table = table
        self._placement = placement
        self._most = most
        self._books = count(incarnation << 32)
        self._using = threading.Lock()
        self._open: Named | None = None
        """The pull on its way that brings new ids."""
        self._begin()

    def name(self, ids: NDArray[np.int64], offsets: NDArray[np.int64]) -> Named:
        """Return rows by their numbers, where they have some.

        New ones get theirs by it, unless an earlier pull that brought some is on its way.

        Args:
            ids: int64 [U], each once, sorted by id inside their shard.
            offsets: int64 [S + 1]: the shards' bounds in ``ids``.
        """
        with self._using:
            slots = self._index.find(ids, create=False)
            numbers = np.where(slots < 0, -1, self._numbers.array.reshape(-1)[slots])
            known = numbers >= 0
            places = np.where(known, numbers, MAX_KNOWN_IDS + np.arange(len(ids)))
            order = sort_within_shards(places, offsets)
            before = np.concatenate([[0], np.cumsum(known)])[offsets]
            ids, known, numbers = ids[order], known[order], numbers[order]
            parts = []
            for server, size in enumerate(self._sizes):
                shards = self._placement.shards_of(server)
                part = slice(int(offsets[shards.start]), int(offsets[shards.stop]))
                is_known, bounds = known[part], before[shards.start : shards.stop + 1]
                others = ids[part][~is_known]
                brings = self._open is None and 0 < len(others) <= self._most - size
                base = size if brings else None
                mine = numbers[part][is_known]
                parts.append(NamedPart(mine, bounds - bounds[0], others, base))
            named = Named(ids=ids, order=order, book=self._book, parts=tuple(parts))
            self._note(named)
            return named

    def confirm(self, named: Named) -> None:
        """Note that all pservers have answered: new ids have their numbers now."""
        with self._using:
            if named is not self._open:
                return
            self._open = None
            for server, part in enumerate(named.parts):
                if part.base is None:
                    continue
                slots = self._index.find(part.others, create=True)
                self._numbers.ensure(self._index.num_rows)
                numbers = np.arange(part.base, part.base + len(slots))
                self._numbers.array.reshape(-1)[slots] = numbers
                self._sizes[server] += len(slots)

    def give_up(self, named: Named) -> None:
        """Note that a pull had no end: nobody knows which pservers have its new ids."""
        with self._using:
            if named is self._open:
                self._begin()

    def lose(self, book: int) -> None:
        """Begin a new book, if some pserver has lost this one."""
        with self._using:
            if book == self._book:
                self._begin()

    def _begin(self) -> None:
        self._book = next(self._books)
        self._index = SlotIndex(table=self._table)
        self._numbers = RowColumn(1, np.int64, table=self._table)
        self._numbers.ensure(1)
        self._sizes = [0] * self._placement.num_servers
        self._open = None
        self._waited = 0

    def _note(self, named: Named) -> None:
        if self._open is not None:
            self._waited += 1
            if self._waited == _PATIENCE:
                self._begin()
        elif any(part.base is not None for part in named.parts):
            self._open, self._waited = named, 0
