"""What a narrow format loses of what it sends isn't lost for good.

Of gradients 16-bit formats round by chance: what arrives is right on average, and nothing is
to be kept. 8 bits round too coarsely for that. They have error feedback, which sends what was
lost with the next gradient: with ``g`` the gradient and ``r`` what is left of former ones,
``q = Q(g + r)`` is sent and ``r' = g + r - q`` stays (Seide et al., "1-Bit Stochastic Gradient
Descent", 2014; Karimireddy et al., "Error Feedback Fixes SignSGD", 2019). Differences of GEO
and LocalSGD have it in every format.

A ``Residual`` is of one vector, or of rows that are all sent each time; ``RowResiduals`` are of
the rows of a table, some of which are sent each time. They take 4 bytes a value of every row
that this worker pushed, and about 16 bytes a row to find it.

Shape legend: U = unique ids, D = row width, P = values of a vector.
"""

import copy
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.encoding import (
    Encoded,
    WireDtype,
    decode_rows,
    encode_rows,
    encode_with_rest,
)
from paramfleet_shared.tables.rowstore import RowColumn, SlotIndex

__all__ = ["Found", "Residual", "RowResiduals", "Salts", "WireFormat", "sent_and_lost"]

_WORD = (1 << 64) - 1
_WHOLE = (slice(None),)

A = TypeVar("A")
"""float32 values: a numpy array or a tensor."""
S = TypeVar("S")
"""What travels of them."""


class Salts:
    """By which salts gradients are rounded: for each another one, the same in each run.

    Args:
        rank: Of this worker. What one rounds up another needn't.
        incarnation: Of this worker, so that it doesn't repeat what its former self did.
    """

    def __init__(self, rank: int, incarnation: int) -> None:
        self._state = (incarnation << 32 | rank) * 0xD1342543DE82EF95 & _WORD

    def next(self) -> int:
        """Return a salt of 32 bits: S. Vigna's splitmix64."""
        self._state = mixed = self._state + 0x9E3779B97F4A7C15 & _WORD
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _WORD
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _WORD
        return (mixed ^ mixed >> 31) >> 32


class Found(NamedTuple):
    """Where the rests of some rows are kept."""

    within: object
    """As long as what was kept: ``forget`` and ``drop`` end it."""
    slots: NDArray[np.int64]
    """-1 for a row of which nothing was kept."""


class RowResiduals:
    """What a format left of the gradients of a sparse table's rows. Any thread may use it.

    Args:
        table: Its name.
        dim: Row width D.
        wire: The format.
    """

    def __init__(self, table: str, dim: int, wire: WireDtype) -> None:
        self._table = table
        self._dim = dim
        self._wire = wire
        self._using = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._index = SlotIndex(table=self._table)
        self._left = RowColumn(self._dim, table=self._table)
        self._places = object()

    def forget(self) -> None:
        """Drop what is left."""
        with self._using:
            self._begin()

    def drop(self, ids: NDArray[np.int64]) -> None:
        """Drop what is left of rows, int64 [n], that were removed; others take its memory."""
        with self._using:
            slots = self._index.remove(ids)
            slots = slots[slots >= 0]
            self._left.array[slots] = 0
            self._index.release(slots)
            self._places = object()

    @property
    def num_rows(self) -> int:
        """Return of how many rows something is kept."""
        return self._index.num_rows

    def find(self, ids_U: NDArray[np.int64]) -> Found:
        """Return where the rests of rows are kept, for ``encode``: half of its work.

        Args:
            ids_U: int64 [U], each id once.
        """
        with self._using:
            return Found(self._places, self._index.find(ids_U, create=False))

    def encode(
        self,
        ids_U: NDArray[np.int64],
        grads_UD: NDArray[np.float32],
        found: Found | None = None,
    ) -> Encoded:
        """Return the gradients with what was left of these rows, as they travel.

        Args:
            ids_U: int64 [U], each id once.
            grads_UD: float32 [U, D].
            found: What ``find`` returned for these ids, if it was asked.
        """
        with self._using:
            if found is None or found.within is not self._places:
                slots = self._index.find(ids_U, create=True)
            else:
                slots = self._made(ids_U, found.slots)
            self._left.ensure(self._index.num_slots)
            return encode_with_rest(grads_UD, self._left.array, slots, self._wire)

    def _made(self, ids_U: NDArray[np.int64], slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slots of rows, with new ones for those that had none."""
        new = np.flatnonzero(slots < 0)
        if len(new):
            slots[new] = self._index.find(ids_U[new], create=True)
        return slots

    def take(self, *, max_rows: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Return all that is left, ids int64 [U] and rows float32 [U, D], and keep nothing.

        What is encoded from the call on is another's: it isn't in these pieces.

        Args:
            max_rows: Rows in one piece.
        """
        with self._using:
            num, ids, left = self._index.num_slots, self._index.ids(), self._left.array
            self._begin()
        return _pieces(ids, left[:num], max_rows)


def _pieces(
    ids_U: NDArray[np.int64], left_UD: NDArray[np.float32], max_rows: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Yield the rows of which something is left."""
    for start in range(0, len(left_UD), max_rows):
        piece = slice(start, start + max_rows)
        some = left_UD[piece].any(axis=1)
        if some.any():
            yield ids_U[piece][some], left_UD[piece][some]


class Format(Protocol[A, S]):
    """How values travel."""

    def encode(self, values: A, /) -> S:
        """Return what travels of values; they stay as they are."""
        ...

    def decode(self, sent: S, /) -> A:
        """Return what arrives."""
        ...


class WireFormat(NamedTuple):
    """The format of a part of a request, rounded to the nearest."""

    wire: WireDtype

    def encode(self, values: NDArray[np.float32], /) -> Encoded:
        """Return rows, float32 [U, D], or a vector, float32 [P], as they travel."""
        return encode_rows(values, self.wire)

    def decode(self, sent: Encoded, /) -> NDArray[np.float32]:
        """Return what arrives, float32 of the same shape."""
        return decode_rows(sent, self.wire)


class Residual(Generic[A, S]):
    """What a format has lost of one array, on its way into the next. One thread owns it.

    Args:
        form: The format.
    """

    def __init__(self, form: Format[A, S]) -> None:
        self._format = form
        self.left: A | None = None
        """What is still to be sent, float32 of the array's shape; None for nothing."""

    def forget(self) -> None:
        """Drop what is left."""
        self.left = None

    def send(self, values: A, parts: Sequence[slice] = _WHOLE) -> list[S]:
        """Return values with what is left of former ones as they travel, part by part.

        Args:
            values: float32; it stays as it is.
            parts: Which values are encoded together; none is in two.
        """
        left: Any = self._joined(values)
        sent = []
        for part in parts:
            one = self._format.encode(left[part])
            left[part] -= self._format.decode(one)
            sent.append(one)
        self.left = left
        return sent

    def take(self) -> A | None:
        """Return all that is left, and keep nothing; None for nothing."""
        left, self.left = self.left, None
        return left

    def _joined(self, values: A) -> Any:
        """Return values with what is left, in the memory of what is left."""
        left: Any = self.left
        if left is None:
            return copy.deepcopy(values)
        left += values
        return left


def sent_and_lost(
    values: NDArray[np.float32], wire: WireDtype, parts: Sequence[slice] = _WHOLE
) -> tuple[list[Encoded], NDArray[np.float32]]:
    """Return parts of values as they travel, and what all of them lose, of the values' shape.

    For who keeps what is lost elsewhere than in a ``Residual``.
    """
    residual = Residual(WireFormat(wire))
    sent, lost = residual.send(values, parts), residual.take()
    assert lost is not None, "it was just sent"
    return sent, lost
