"""Rows by slot: what a worker needs to keep rows of its own.

A ``SlotIndex`` numbers ids in order of creation; columns of rows beside it
(``RowColumn``) hold the values, the last pulled ones, optimizer state, whatever the
owner keeps by slot.
"""

import contextlib
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.errors import ContractError
from paramfleet_shared.errors.tables import TableMemoryError
from paramfleet_shared.tables.kernels import rows as row_kernels
from paramfleet_shared.tables.kernels.basics.compiled import as_input
from paramfleet_shared.tables.kernels.basics.lanes import LANES
from paramfleet_shared.tables.kernels.firsts import fill_firsts, firsts_of
from paramfleet_shared.tables.kernels.index import (
    DONE,
    GROUP,
    LEAD,
    MOVING_ENTRIES,
    PAGE_LINES,
    PAGES,
    ROWS,
    Index,
    pages_for,
)
from paramfleet_shared.tables.kernels.seek import find_slots
from paramfleet_shared.tables.memory.prefault import Lookahead
from paramfleet_shared.tables.memory.reservation import (
    DEFAULT_MAX_ROWS,
    CapacityError,
    RowColumn,
    reserve,
)
from paramfleet_shared.tables.spec import TableSpec

__all__ = [
    "STORAGE_TYPES",
    "Growth",
    "RowColumn",
    "RowShapeError",
    "SlotIndex",
    "as_floats",
    "check_array",
    "distinct",
    "gather_rows",
    "initial_rows",
    "scatter_rows",
]


STORAGE_TYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.int16),
    "bfloat16": np.dtype(np.uint16),
}
"""What arrays of a storage hold; 16 bits as integers, as kernels take them."""


LINE_BYTES = 64
"""Of the index."""

SHARE_AHEAD, LEAST_AHEAD_BYTES = 32, 16 << 20
"""How much a table may grow between two questions for memory: a part of what it has, and so
many bytes at least."""


class Growth(Protocol):
    """Says whether there is memory for more rows."""

    @property
    def row_bytes(self) -> int:
        """Return what a row takes, its part of the index included."""
        ...

    def check(self, num_rows: int) -> None:
        """Pass if so many more rows may come.

        Raises:
            TableMemoryError: if there is no memory for them.
        """
        ...


class RowShapeError(ContractError):
    """An array of ids, values or gradients has the wrong shape or type."""

    code = "contract.row_shape"
    table: str
    expected: str
    got: str
    sentence = "table {table!r}: expected {expected}, got {got}"


def check_array(
    array: NDArray[Any],
    dtype: type[np.generic],
    shape: tuple[int, ...],
    *,
    table: str,
    in_place: bool = False,
) -> None:
    """Compare an array with what a table takes; -1 in ``shape`` stands for any length.

    Args:
        array: What came.
        dtype: What it must hold.
        shape: And how long it must be.
        table: Named by the error.
        in_place: Whether a kernel writes to it, so that it can't be copied first.

    Raises:
        RowShapeError: if the type or the shape differs, or it can't be written in place.
    """
    lengths = array.shape
    fits = lengths == shape
    if not fits and len(lengths) == len(shape):
        fits = True
        for have, want in zip(lengths, shape, strict=True):
            fits &= want in {-1, have}
    writable = not in_place or array.flags.carray  # which is contiguous and aligned, too
    if array.dtype != dtype or not fits or not writable:
        wanted = ", ".join("any" if length == -1 else str(length) for length in shape)
        suffix = " contiguous and writable" if in_place else ""
        raise RowShapeError(
            table=table,
            expected=f"{np.dtype(dtype)} [{wanted}]{suffix}",
            got=f"{array.dtype} {list(array.shape)}" + ("" if writable else " not so"),
        )


class SlotIndex:
    """Numbers ids 0, 1, 2... in the order they come. One thread owns it.

    Growth is spread over the calls that create: none pauses to rehash.

    Args:
        max_rows: Most ids it may hold; None for ``DEFAULT_MAX_ROWS``.
        table: Named by errors.
        shard: Named by errors.
        growth: Asked before there are more ids; None lets all come.
    """

    def __init__(
        self,
        *,
        max_rows: int | None = None,
        table: str = "",
        shard: int = 0,
        growth: Growth | None = None,
    ) -> None:
        self._growth = growth
        self.max_rows = DEFAULT_MAX_ROWS if max_rows is None else max_rows
        self._sure_rows = self.max_rows if growth is None else 0
        """So many ids may come without a question."""
        self.granted_rows = 0
        """And so many, by ``grant``, which is called on another thread than the owner's."""
        self._table = table
        self._shard = shard
        num_lines = pages_for(self.max_rows) * PAGE_LINES
        lines = reserve(num_lines * 8, np.uint64).reshape(num_lines, 8)
        self.arrays = Index(
            lines=lines,
            words=lines.view(np.uint32),
            ids=reserve(self.max_rows, np.uint64),
            counts=np.array([0, 1, 2], np.int64),
            moving=np.empty((2, MOVING_ENTRIES), np.uint64),
            fill=np.empty(4 * PAGE_LINES, np.int64),
            homes=np.zeros(GROUP + LEAD, np.int64),
            slots=np.zeros(GROUP + row_kernels.AHEAD, np.int64),
            missed=np.empty(GROUP + LANES, np.int64),
        )
        """For kernels that create rows beside ids."""
        self._lookaheads = (Lookahead(self.arrays.ids), Lookahead(lines))

    @property
    def num_rows(self) -> int:
        """Return how many ids have a slot."""
        return int(self.arrays.counts[ROWS])

    @property
    def num_bytes(self) -> int:
        """Return the memory in use: 8 bytes an id, and the index's pages."""
        return 8 * self.num_rows + int(self.arrays.counts[PAGES]) * PAGE_LINES * LINE_BYTES

    def ids(self) -> NDArray[np.int64]:
        """Return the id of each slot: int64 [num_rows], a view that stays valid."""
        return self.arrays.ids[: self.num_rows].view(np.int64)

    def find(
        self, ids: NDArray[np.int64], *, create: bool, out: NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        """Return the slot of each id: int64 [n].

        Args:
            ids: int64 [n]; an id may occur many times.
            create: Whether new ids get the next slots; else theirs is -1.
            out: Where to put the slots, int64 [n] contiguous; None for a new array.

        Raises:
            RowShapeError: if ``ids`` are not int64 [n].
            CapacityError: if there is no room for the new ids.
        """
        keys = self.keys_of(ids, create=create)
        slots = np.empty(keys.size, np.int64) if out is None else out
        outcome = find_slots(self.arrays, keys, slots, create)
        if create:
            self.look_ahead()
        if outcome != DONE:
            raise self.full()
        return slots

    def look_ahead(self) -> None:
        """Have the pages made that the next ids will need; after each call that creates."""
        ids, lines = self._lookaheads
        ids.reach(8 * self.num_rows)
        lines.reach(int(self.arrays.counts[PAGES]) * PAGE_LINES * LINE_BYTES)

    def prefault(self, num_rows: int) -> None:
        """Make the pages now that so many ids need."""
        ids, lines = self._lookaheads
        ids.make_now(8 * num_rows)
        lines.make_now(pages_for(num_rows) * PAGE_LINES * LINE_BYTES)

    def keys_of(self, ids: NDArray[np.int64], *, create: bool) -> NDArray[np.uint64]:
        """Return ids as kernels take them.

        Args:
            ids: int64 [n].
            create: Whether the new ones will get slots.

        Raises:
            RowShapeError: if ``ids`` are not int64 [n].
            CapacityError: if there is no room for the new ids.
            TableMemoryError: if there is no memory for them.
        """
        check_array(ids, np.int64, (-1,), table=self._table)
        keys = as_input(ids, np.int64).view(np.uint64)
        wanted = self.num_rows + keys.size if create else 0
        if wanted > self._sure_rows and wanted > self.granted_rows:
            self._make_sure(keys)
        return keys

    def _make_sure(self, keys: NDArray[np.uint64]) -> None:
        """Pass if the new ones of some ids may come.

        Raises:
            CapacityError: if there is no room for them.
            TableMemoryError: if there is no memory for them.
        """
        growth, wanted = self._growth, self.num_rows + keys.size
        if growth is not None and wanted <= self.max_rows:
            with contextlib.suppress(TableMemoryError):  # few of these ids may be new
                self._sure_rows = self._check_ahead(growth, wanted)
                return
        if num_new := self._unknown(keys).size:
            self.check_room(self.num_rows + num_new)

    def grant(self, num_rows: int) -> bool:
        """Let ``num_rows`` ids come in all without a question, and some more.

        For a thread that decides before the owner acts; one at a time.

        Returns:
            False, with nothing changed, if there is no room or no memory for them.
        """
        if num_rows <= self.granted_rows:
            return True
        if num_rows > self.max_rows:
            return False
        if self._growth is None:
            self.granted_rows = self.max_rows
            return True
        try:
            self.granted_rows = self._check_ahead(self._growth, num_rows)
        except TableMemoryError:
            return False
        return True

    def check_room(self, num_rows: int) -> None:
        """Pass if there may be ``num_rows`` ids in all.

        Raises:
            CapacityError: if there is no room for them.
            TableMemoryError: if there is no memory for them.
        """
        if num_rows > self.max_rows:
            raise self.full()
        if self._growth is not None and num_rows > self.granted_rows:
            self._growth.check(num_rows - self.num_rows)

    def unknown(self, ids: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return those of ids, int64 [n], that have no slot, each once and sorted."""
        return self._unknown(self.keys_of(ids, create=False))

    def _unknown(self, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        slots = np.empty(keys.size, np.int64)
        find_slots(self.arrays, keys, slots, False)  # noqa: FBT003  # kernels take no keywords
        return distinct(keys[slots < 0])

    def _check_ahead(self, growth: Growth, wanted: int) -> int:
        """Return how many ids may come if there is memory for ``wanted``, and some more.

        Raises:
            TableMemoryError: if there is no memory for them.
        """
        ahead = max(self.num_rows // SHARE_AHEAD, LEAST_AHEAD_BYTES // growth.row_bytes)
        most = min(self.max_rows, wanted + ahead)
        growth.check(most - self.num_rows)
        return most

    def full(self) -> CapacityError:
        """Return the error of an id that found no place."""
        return CapacityError(
            table=self._table, shard=self._shard, rows=self.num_rows, max_rows=self.max_rows
        )


def distinct(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return each key once, sorted; ``numpy.unique`` hashes, and takes ten times as long."""
    ordered = np.sort(keys)
    is_first = np.ones(len(ordered), np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first]


def initial_rows(spec: TableSpec, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the first value of each id's row: float32 [n, dim], as a pserver makes it."""
    check_array(ids, np.int64, (-1,), table=spec.name)
    keys = as_input(ids, np.int64).view(np.uint64)
    rows = np.empty((keys.size, spec.dim), STORAGE_TYPES[spec.storage])
    fill_firsts(firsts_of(spec), keys, rows.reshape(-1), (spec.dim, spec.dim))
    return rows if spec.storage == "float32" else as_floats(rows)


def as_floats(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return a copy of what a storage holds (see ``STORAGE_TYPES``) as float32."""
    if values.dtype == np.int16:
        return values.copy().view(np.float16).astype(np.float32)
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.copy()


def gather_rows(
    array: NDArray[np.float32], slots: NDArray[np.int64], out: NDArray[np.float32]
) -> int:
    """Copy ``array[slots]`` to ``out``, without the GIL; return how many slots are -1.

    Args:
        array: float32 [rows, width], contiguous.
        slots: int64 [n], below ``rows``; the row of a slot -1 is left as it is in ``out``.
        out: float32 [n, width], contiguous.

    Raises:
        RowShapeError: if an array has another shape or type.
    """
    check_array(array, np.float32, (-1, -1), table="")
    check_array(slots, np.int64, (-1,), table="")
    width = array.shape[1]
    check_array(out, np.float32, (slots.size, width), table="", in_place=True)
    flat = as_input(array, np.float32).reshape(-1)
    return int(
        row_kernels.gather(flat, width, as_input(slots, np.int64), out.reshape(-1), width)
    )


def scatter_rows(
    array: NDArray[np.float32], slots: NDArray[np.int64], rows: NDArray[np.float32]
) -> None:
    """Put ``rows`` to ``array[slots]``, without the GIL; of two for one slot, the later stays.

    Args:
        array: float32 [rows, width], contiguous.
        slots: int64 [n], from 0 and below ``rows``.
        rows: float32 [n, width].

    Raises:
        RowShapeError: if an array has another shape or type.
    """
    check_array(array, np.float32, (-1, -1), table="", in_place=True)
    check_array(slots, np.int64, (-1,), table="")
    width = array.shape[1]
    check_array(rows, np.float32, (slots.size, width), table="")
    flat = as_input(rows, np.float32).reshape(-1)
    row_kernels.scatter(array.reshape(-1), width, as_input(slots, np.int64), flat, (0, width))
