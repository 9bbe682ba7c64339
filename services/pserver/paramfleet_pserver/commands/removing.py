"""Removed rows: what workers that keep copies are sent of them, and when their places are free.

A recorder counts rows by their places in a block. So a removed row keeps its place, as one
that changed, until every worker has acknowledged a reply that said so; until then no new row
can be taken for it. If the id has a row again by then, in another place, a reply that says that
it was removed holds that row, too: the worker drops its copy, and then takes this one.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.core.geo.recorder import GeoRecorder
from paramfleet_pserver.tables.blocks import Block
from paramfleet_shared.net.wire.identity import ChangeIdentity
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.values.sorting import each_once

__all__ = ["News", "Removal", "news_of", "release_reported", "remove_recorded", "remove_rows"]


@dataclass(slots=True)
class Removal:
    """A worker's removal, and what has become of it: who asks again is answered the same."""

    identity: ChangeIdentity
    applied: asyncio.Future[None]
    """Done when the owners have carried it out; it must not be cancelled."""
    counts: list[int]
    """Of rows that owners removed; each adds its own, before ``applied`` is done."""

    @property
    def num_rows(self) -> int:
        """Return how many rows it removed."""
        return sum(self.counts)


class News(NamedTuple):
    """What a reply says of a block."""

    ids: NDArray[np.int64]
    """Of rows that it holds, each once. [n]"""
    removed: NDArray[np.int64]
    """Of rows to be dropped before. [m]"""


def remove_rows(block: Block, ids: NDArray[np.int64]) -> int:
    """Remove rows of a block, int64 [n], of which nobody keeps copies; return how many."""
    places = block.rows.remove(ids)
    block.rows.release(places)
    return len(places)


def remove_recorded(
    rows: SparseShard, recorder: GeoRecorder, places: NDArray[np.int64]
) -> None:
    """Let workers be sent that the rows in ``places``, int64 [n], were removed."""
    recorder.record(places, writer=None)
    release_reported(rows, recorder, places)


def release_reported(
    rows: SparseShard, recorder: GeoRecorder, places: NDArray[np.integer[Any]]
) -> None:
    """Let new rows have those of some places that wait for no worker.

    Args:
        rows: Of the block.
        recorder: Of the block.
        places: [n], each once; those that have a row are left out.
    """
    if rows.num_taken == rows.num_rows:  # no removed row keeps its place
        return
    numbers = places.astype(np.int64)
    gone = numbers[_is_gone(rows, numbers)]
    rows.release(gone[~recorder.is_waiting(gone)])


def news_of(rows: SparseShard, places: NDArray[np.int64]) -> News:
    """Return what a reply says that holds ``places``, int64 [n], each once."""
    ids = rows.ids()[places]
    if rows.num_taken == rows.num_rows:
        return News(ids, np.empty(0, np.int64))
    is_gone = _is_gone(rows, places)
    removed = each_once(ids[is_gone])
    again = removed[rows.find(removed) >= 0]
    return News(np.concatenate([ids[~is_gone], np.setdiff1d(again, ids[~is_gone])]), removed)


def _is_gone(rows: SparseShard, places: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which places have no row."""
    is_gone: NDArray[np.bool_] = rows.find(rows.ids()[places]) != places
    return is_gone
