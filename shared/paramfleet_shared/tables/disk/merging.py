"""A merge: what changed goes into the pages, sorted by page, in steps that take little time.

First there are pages for the rows that will be there, by an estimate; then batch after batch
of pages gets its rows; last, there are as many pages as the rows need. Each step leaves pages
that are right together with the log, whose rows count before those of the pages until the whole
merge is done.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.disk.kernels.pages import FOUND, pages_of
from paramfleet_shared.tables.disk.kernels.rebuilding import Changes
from paramfleet_shared.tables.disk.pages.files import PageFiles
from paramfleet_shared.tables.disk.pages.geometry import Geometry, fullest_for
from paramfleet_shared.tables.disk.pages.lookups import Answers, Lookups, spans
from paramfleet_shared.tables.disk.pages.rebuilding import Pages
from paramfleet_shared.tables.kernels.basics.sorting import sort_numbered

__all__ = ["InMemory", "Source", "merge_into", "with_gaps"]

LEAST_PORTION_BYTES, MOST_PORTION_BYTES, PORTIONS = 4 << 20, 64 << 20, 8
"""Of rows that are in memory at once: a part of one in so many, within these bounds. Those of
a part are near each other in the log, too, so that whole runs of it are read."""

_KEYS = 1 << 16
"""That are looked at in one call."""

_SAMPLE = 512
"""Keys that are looked up to estimate how many are new."""

_SEED = 7


class Source(Protocol):
    """Rows that changed."""

    keys: NDArray[np.uint64]
    """[n]"""
    numbers: NDArray[np.uint32]
    """[m]: which of ``keys`` count, so that each key is there once."""

    def is_put(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of ``keys[numbers]`` were put; the others were removed."""
        ...

    def load(self, numbers: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Return some of the rows: those of ``keys[numbers]``, which were put.

        Raises:
            TierReadError: if they can't be read.
        """
        ...


class InMemory:
    """Rows that are given.

    Args:
        keys: uint64 [n], each once.
        rows: uint32 [n, pitch].
    """

    def __init__(self, keys: NDArray[np.uint64], rows: NDArray[np.uint32]) -> None:
        self.keys = keys
        self.numbers = np.arange(keys.size, dtype=np.uint32)
        self._rows = rows

    def is_put(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which rows were put: all."""
        return np.ones(numbers.size, np.bool_)

    def load(self, numbers: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Return some of the rows."""
        return self._rows[numbers]


class _Tools(NamedTuple):
    files: PageFiles
    pages: Pages
    lookups: Lookups


def merge_into(
    files: PageFiles, pages: Pages, lookups: Lookups, source: Source
) -> Iterator[None]:
    """Bring changed rows into the pages, and yield after each step.

    Raises:
        TierReadError: if the system refuses to read.
        TierDamagedError: if a page isn't what was written.
        TierFullError: if there is no room; nothing is lost, and it can be begun again.
        TierFailedError: if the system refuses to write.
    """
    tools = _Tools(files, pages, lookups)
    expected = files.state.rows + _num_new(tools, source)
    yield from _resize(tools, expected, may_contract=False)
    yield from _fill(tools, source)
    yield from _resize(tools, files.state.rows, may_contract=True)


def _num_new(tools: _Tools, source: Source) -> float:
    """Return how many of the rows that were put are of keys that have none, by a sample.

    Raises:
        TierReadError: if the system refuses to read.
        TierDamagedError: if a page isn't what was written.
    """
    num = source.numbers.size
    if not tools.files.state.rows:
        some = source.numbers.astype(np.int64)
        return float(source.is_put(some).sum())
    chosen = np.random.default_rng(_SEED).choice(num, min(num, _SAMPLE), replace=False)
    some = source.numbers[chosen].astype(np.int64)
    some = some[source.is_put(some)]
    if not some.size:
        return 0.0
    answers = Answers(
        np.zeros(some.size, np.int64),
        np.empty((some.size, tools.files.form.pitch), np.uint32),
    )
    tools.lookups.find(source.keys[some], np.arange(some.size), answers)
    return float(np.sum(answers.found != FOUND)) * num / chosen.size


def _resize(tools: _Tools, num_rows: float, *, may_contract: bool) -> Iterator[None]:
    """Expand or contract until there are as many pages as so many rows need.

    Raises:
        TierReadError: if the system refuses to read.
        TierDamagedError: if a page isn't what was written.
        TierFullError: if there is no room.
        TierFailedError: if the system refuses to write.
    """
    files, holds = tools.files, tools.files.form.holds
    fullest = fullest_for(holds)
    have: Geometry = files.state.geometry
    wanted = have.wanted(num_rows, holds, fullest)
    if wanted.pages < have.pages and not may_contract:
        return
    if not files.state.rows and wanted.pages > have.pages:
        if not tools.pages.may_become(wanted.pages):
            return
        for first in range(have.pages, wanted.pages, tools.pages.most):
            last = min(wanted.pages, first + tools.pages.most)
            # Pages that the geometry doesn't reach are nobody's yet.
            geometry = wanted if last == wanted.pages else have
            tools.pages.lay_out(first, last, geometry)
            yield
    while step := files.state.geometry.step_to(wanted, tools.pages.most):
        if not tools.pages.may_become(wanted.pages):
            return
        tools.pages.regroup(step)
        yield


def _fill(tools: _Tools, source: Source) -> Iterator[None]:
    """Replace the pages of all changes, batch by batch.

    Raises:
        TierReadError: if the system refuses to read.
        TierDamagedError: if a page isn't what was written.
        TierFullError: if there is no room.
        TierFailedError: if the system refuses to write.
    """
    order = _by_pages(tools.files, source)
    row_bytes = 4 * tools.files.form.pitch
    most_bytes = max(LEAST_PORTION_BYTES, order.size * row_bytes // PORTIONS)
    most = max(1, min(MOST_PORTION_BYTES, most_bytes) // row_bytes)
    for first in range(0, order.size, most):
        yield from _fill_portion(tools, source, order[first : first + most].astype(np.int64))


def _by_pages(files: PageFiles, source: Source) -> NDArray[np.uint32]:
    """Return which keys count, in the order of their pages: uint32 [m]."""
    numbers = source.numbers
    homes = np.empty(numbers.size, np.int64)
    for first in range(0, numbers.size, _KEYS):
        some = slice(first, first + _KEYS)
        homes[some] = _homes(files, source.keys[numbers[some]])
    order = np.empty(numbers.size, np.uint32)
    sort_numbered(homes.view(np.uint64), order)
    return numbers[order]


def _homes(files: PageFiles, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    homes = np.empty(keys.size, np.int64)
    pages_of(keys, files.form, (files.state.groups, files.state.pages), homes)
    return homes


def _fill_portion(tools: _Tools, source: Source, some: NDArray[np.int64]) -> Iterator[None]:
    """Replace the pages of some changes, whose rows are in memory meanwhile.

    Raises:
        TierReadError: if the system refuses to read.
        TierDamagedError: if a page isn't what was written.
        TierFullError: if there is no room.
        TierFailedError: if the system refuses to write.
    """
    is_put = source.is_put(some)
    rows = source.load(some[is_put])
    numbers = np.where(is_put, np.cumsum(is_put) - 1, -1)
    yield
    keys = source.keys[some]
    homes = _homes(tools.files, keys)
    pages = with_gaps(homes, tools.lookups.gap // 2)

    def changes_of(batch: NDArray[np.int64]) -> Changes:
        begin = int(np.searchsorted(homes, batch[0]))
        end = int(np.searchsorted(homes, batch[-1], side="right"))
        return Changes(keys[begin:end], rows, numbers[begin:end])

    for first in range(0, pages.size, tools.pages.most):
        tools.pages.change(pages[first : first + tools.pages.most], changes_of)
        yield


def with_gaps(homes: NDArray[np.int64], gap: int) -> NDArray[np.int64]:
    """Return sorted pages each once, and those between two that are near each other.

    Args:
        homes: int64 [n], sorted; each may be there many times.
        gap: So many pages may be between two.
    """
    is_first = np.ones(homes.size, np.bool_)
    is_first[1:] = homes[1:] != homes[:-1]
    wanted = homes[is_first]
    if gap <= 0 or wanted.size < 2:
        return wanted
    steps = np.append(np.diff(wanted), 1)
    return spans(wanted, np.where(steps <= gap + 1, steps, 1))
