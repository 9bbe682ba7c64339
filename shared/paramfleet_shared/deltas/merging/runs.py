"""Runs of sorted rows, merged a piece at a time: later ones win.

Shape legend: n = rows, m = removed rows, D = row width.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.deltas.merging.file_array import FileArray

__all__ = ["NO_IDS", "PIECE_BYTES", "MergedRows", "Run", "merged", "merged_ids"]

PIECE_BYTES = 32 << 20
"""Of rows that are merged at a time, all runs together."""

NO_IDS = np.empty(0, np.int64)


class Run(NamedTuple):
    """Sorted rows, mapped, in memory or in a file; no id is in both lists."""

    ids: NDArray[np.int64] | FileArray
    """int64 [n], sorted, each once."""
    rows: NDArray[np.float32] | FileArray
    """float32 [n, D]."""
    removed: NDArray[np.int64] | FileArray = NO_IDS
    """int64 [m], sorted, each once."""


class MergedRows(NamedTuple):
    """Some rows of the result."""

    ids: NDArray[np.int64]
    """int64 [n], sorted, all above those of the piece before."""
    rows: NDArray[np.float32]
    """float32 [n, D]."""


class _Entries(NamedTuple):
    """What all runs say of the ids of one piece, the newest statement of each."""

    ids: NDArray[np.int64]
    """int64 [n]: that have a row."""
    places: NDArray[np.int64] | None
    """int64 [n], in the rows of all runs' slices behind each other; None if they are these."""
    slices: list[tuple[int, slice]]
    """Which rows of which run may be in the piece, the older runs first."""


def merged(
    runs: Sequence[Run], dim: int, *, piece_bytes: int = PIECE_BYTES
) -> Iterator[MergedRows]:
    """Yield what is left of all runs, sorted by id: of each id what the last run says.

    Args:
        runs: The older ones first.
        dim: D.
        piece_bytes: How much of them is read at a time.
    """
    for entries in _pieces(runs, 8 + 4 * dim, piece_bytes):
        found = [runs[run].rows[places] for run, places in entries.slices]
        rows = found[0] if len(found) == 1 else np.concatenate(found)
        yield MergedRows(entries.ids, rows if entries.places is None else rows[entries.places])


def merged_ids(
    runs: Sequence[Run], *, piece_bytes: int = PIECE_BYTES
) -> Iterator[NDArray[np.int64]]:
    """Yield the ids alone of what ``merged`` yields, int64 [n], in other pieces."""
    for entries in _pieces(runs, 8, piece_bytes):
        yield entries.ids


class _List(NamedTuple):
    """Sorted ids of one run."""

    ids: NDArray[np.int64] | FileArray
    run: int | None
    """Whose rows they have; None if these ids have no row any more."""


def _pieces(runs: Sequence[Run], entry_bytes: int, piece_bytes: int) -> Iterator[_Entries]:
    """Yield all ids that are left, some at a time."""
    both = [
        (_List(run.ids, number), _List(run.removed, None)) for number, run in enumerate(runs)
    ]
    lists = [each for pair in both for each in pair if each.ids.size]
    step = max(1, piece_bytes // (entry_bytes * max(1, len(lists))))
    at = [0] * len(lists)
    while bounds := [
        int(ids[begin + step - 1])
        for (ids, _), begin in zip(lists, at, strict=True)
        if len(ids) - begin > step
    ]:
        bound = min(bounds)
        to = [
            begin + int(ids[begin : begin + step].searchsorted(bound, "right"))
            for (ids, _), begin in zip(lists, at, strict=True)
        ]
        yield _entries(lists, at, to)
        at = to
    last = _entries(lists, at, [len(ids) for ids, _ in lists])
    if last.ids.size:
        yield last


def _entries(lists: Sequence[_List], begins: Sequence[int], ends: Sequence[int]) -> _Entries:
    """Return the entries of one piece.

    Args:
        lists: Of all runs, those of older ones first.
        begins: Where each list's part begins.
        ends: Where it ends.
    """
    parts, places, slices, count = [], [], [], 0
    for (ids, run), begin, end in zip(lists, begins, ends, strict=True):
        if begin == end:
            continue
        parts.append(ids[begin:end])
        if run is None:
            places.append(np.full(end - begin, -1, np.int64))
            continue
        slices.append((run, slice(begin, end)))
        places.append(np.arange(count, count + end - begin, dtype=np.int64))
        count += end - begin
    if not slices:
        return _Entries(NO_IDS, NO_IDS, [(0, slice(0, 0))])
    if len(parts) == 1:
        return _Entries(parts[0], None, slices)
    ids, place = np.concatenate(parts), np.concatenate(places)
    order = np.argsort(ids, kind="stable")  # of sorted parts: it merges them
    ids, place = ids[order], place[order]
    counts = place >= 0  # the last statement of each id, if that is a row
    counts[:-1] &= ids[1:] != ids[:-1]
    return _Entries(ids[counts], place[counts], slices)
