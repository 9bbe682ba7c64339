"""Which rows of a shard changed since it was saved: a byte a row, and the ids that went.

A save ends a *generation*. A row has the generation in which it changed last, 0 if it hasn't
changed since marking began; so what changed since a save is what has a later one than it.
Places are marked, not ids: a row in the place of one that was removed is new, and so marked.

n = rows of a call.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.memory.reservation import reserve
from paramfleet_shared.values.sorting import each_once

__all__ = ["LAST_GENERATION", "NO_MARKS", "ChangeMarks", "Changed"]

LAST_GENERATION = 255
"""Generations are numbered anew before it is over."""

MOST_REMOVED = 1 << 22
"""Ids of removed rows that are kept, beside a quarter of the places; the same beyond."""

NO_MARKS = np.empty(0, np.uint8)


class Changed(NamedTuple):
    """What changed until a save, since another one."""

    since: int
    """A generation: rows of later ones changed."""
    pieces: tuple[NDArray[np.int64], ...]
    """Ids of rows that were removed."""

    @property
    def removed(self) -> NDArray[np.int64]:
        """Return these ids, each once, sorted; some may have a row again.

        There may be millions: whoever owns the rows has no time for it.
        """
        return each_once(np.concatenate([np.empty(0, np.int64), *self.pieces]))


class ChangeMarks:
    """The marks of one shard. Its owner's thread uses them.

    Several chains of saves share them, each since a save of its own.

    Args:
        max_rows: Places that the shard may have.
        save: The save with which marking begins.
        chain: Of which chain that is.
    """

    def __init__(self, max_rows: int, save: str, chain: str) -> None:
        self.marks = reserve(max_rows, np.uint8)
        """Of each place: the generation of its last change. [max_rows]"""
        self.generation = 1
        """What a row that changes now is marked with."""
        self._saves = {chain: {save: 0}}
        """The generations that recent saves of each chain ended, by their names."""
        self._removed: list[tuple[int, NDArray[np.int64]]] = []
        self._num_removed = 0

    def note_removed(self, ids: NDArray[np.int64], *, num_places: int) -> bool:
        """Note that the rows of ids, int64 [n], went.

        Args:
            ids: They.
            num_places: Of the shard.

        Returns:
            False if too many have gone: then the marks are of no use any more.
        """
        self._removed.append((self.generation, ids))
        self._num_removed += len(ids)
        if self._num_removed <= MOST_REMOVED + num_places // 4:
            return True
        self._merge()
        return self._num_removed <= MOST_REMOVED + num_places // 4

    def end(self, save: str, since: str, chain: str, *, num_places: int) -> Changed | None:
        """End a generation with a save; return what changed since another one of its chain.

        Args:
            save: Its name.
            since: The name of the other one. What older ones of the chain need is dropped.
            chain: The name of the chain.
            num_places: Of the shard.

        Returns:
            None if that one isn't known.
        """
        if self.generation == LAST_GENERATION:
            self._renumber(num_places)
        own = self._saves.pop(chain, {})
        kept = {name: generation for name, generation in own.items() if name == since}
        self._saves[chain] = {**kept, save: self.generation}
        oldest = min(min(saves.values()) for saves in self._saves.values())
        self._removed = [each for each in self._removed if each[0] > oldest]
        self._num_removed = sum(len(ids) for _, ids in self._removed)
        self.generation += 1
        base = kept.get(since)
        if base is None:
            return None
        return Changed(base, tuple(ids for number, ids in self._removed if number > base))

    def _renumber(self, num_places: int) -> None:
        """Count generations from 0 again: only which saves came before a change matters."""
        known = {generation for saves in self._saves.values() for generation in saves.values()}
        ends = np.array(sorted(known))
        fewer = np.searchsorted(ends, np.arange(LAST_GENERATION + 1)).astype(np.uint8)
        marks = self.marks[:num_places]
        marks[:] = np.frombuffer(marks.tobytes().translate(fewer.tobytes()), np.uint8)
        self._saves = {
            chain: {name: int(fewer[generation]) for name, generation in saves.items()}
            for chain, saves in self._saves.items()
        }
        self._removed = [(int(fewer[generation]), ids) for generation, ids in self._removed]
        self.generation = len(ends)

    def _merge(self) -> None:
        """Keep each id once, with its last generation."""
        latest: dict[int, list[NDArray[np.int64]]] = {}
        for generation, ids in self._removed:
            latest.setdefault(generation, []).append(ids)
        kept: list[tuple[int, NDArray[np.int64]]] = []
        later = np.empty(0, np.int64)
        for generation in sorted(latest, reverse=True):
            ids = np.setdiff1d(np.concatenate(latest[generation]), later)
            later = np.union1d(later, ids)
            kept.append((generation, ids))
        self._removed = kept[::-1]
        self._num_removed = sum(len(ids) for _, ids in kept)
