"""Numbers of dense tables that come in pieces, ahead of the request that uses them.

A request may need more numbers than one body carries, or than may be copied while others
wait. They come by ``stage`` then, piece by piece and in any order, each of a tensor by its
place; the request names them, and they are its tensors from then on. So what it does stays
one change: applied whole or not at all, once for its identity.

What was named once is gone. A worker whose request must be repeated sends the pieces anew.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.requests.dense_requests import StageRequest
from paramfleet_pserver.requests.fields import Fields
from paramfleet_shared.errors.tables import StagedGoneError
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.values.ids import Rank

__all__ = ["Staging"]

MOST_OF_A_TABLE = 2
"""Numbers of one worker and table that are kept: those it sends, and those being applied."""


class _Key(NamedTuple):
    rank: int
    table: str
    number: int


class _Staged:
    """The pieces of one tensor, as far as they have come."""

    def __init__(self, incarnation: int, num_values: int, dtype: np.dtype[Any]) -> None:
        self.incarnation = incarnation
        self.values = np.empty(num_values, dtype)
        self._ends: dict[int, int] = {}
        self._num_writing = 0

    async def put(self, start: int, values: NDArray[Any]) -> None:
        """Copy a piece to its place, on another thread; one that is there changes nothing."""
        stop = start + len(values)
        if self._ends.get(start, start) >= stop:
            return
        loop = asyncio.get_running_loop()
        writing = loop.run_in_executor(None, self._copy, start, values)
        self._num_writing += 1
        writing.add_done_callback(self._end_writing)
        await asyncio.shield(writing)
        self._ends[start] = max(stop, self._ends.get(start, 0))

    def _end_writing(self, _writing: object) -> None:
        self._num_writing -= 1

    def _copy(self, start: int, values: NDArray[Any]) -> None:
        self.values[start : start + len(values)] = values

    @property
    def is_whole(self) -> bool:
        """Return whether every value has come, and none is being written.

        What is handed out is checked and then applied: nothing may write to it meanwhile.
        """
        if self._num_writing:
            return False
        reached = 0
        for start in sorted(self._ends):
            if start > reached:
                return False
            reached = max(reached, self._ends[start])
        return reached == len(self.values)


class Staging:
    """The tensors of one server that are on their way in pieces. Used from one event loop.

    Args:
        check: Refuses a table's number of bytes that there is no memory for.
    """

    def __init__(self, check: Callable[[str, str, int], None]) -> None:
        self._check = check
        self._staged: dict[_Key, _Staged] = {}

    async def put(self, piece: StageRequest) -> None:
        """Take a piece; it is copied on another thread.

        Raises:
            RowShapeError: if it is of another dtype than the pieces before it.
            TableMemoryError: if there is no memory for all of them.
        """
        key = _Key(piece.rank, piece.table.spec.name, piece.number)
        staged = self._staged.get(key)
        if staged is None or (staged.incarnation, staged.values.dtype) != (
            piece.incarnation,
            piece.values.dtype,
        ):
            staged = self._begin(key, piece)
        await staged.put(piece.start, piece.values)

    def fill(self, message: Message) -> Message:
        """Return a message with the tensors it names, which are its own from now on.

        Raises:
            MalformedMessageError: if it names them wrongly.
            StagedGoneError: if not all pieces of them are here; then none is taken.
        """
        named = message.fields.get("staged")
        if named is None:
            return message
        fields = Fields(message.fields, where="request")
        rank = fields.integer("rank")
        keys: dict[str, _Key] = {}
        for about in fields.parts("staged"):
            part = Fields(about, where="staged")
            name = part.text("tensor")
            if name in keys or name in message.tensors:
                raise MalformedMessageError(where=f"tensor {name!r}", rule="is there twice")
            key = _Key(rank, part.text("table"), part.integer("number"))
            if key in keys.values():
                raise MalformedMessageError(
                    where=f"tensor {name!r}", rule="has another's pieces"
                )
            keys[name] = key
        for key in keys.values():
            staged = self._staged.get(key)
            if staged is None or not staged.is_whole:
                raise StagedGoneError(table=key.table, rank=rank, number=key.number)
        tensors = {name: self._staged.pop(key).values for name, key in keys.items()}
        return replace(message, tensors={**message.tensors, **tensors})

    def forget(self, rank: Rank) -> None:
        """Drop what a worker sent."""
        for key in [key for key in self._staged if key.rank == rank]:
            del self._staged[key]

    def _begin(self, key: _Key, piece: StageRequest) -> _Staged:
        num, dtype = piece.table.num_rows, piece.values.dtype
        arithmetic = f"a worker's {num:,} numbers x {dtype.itemsize} bytes"
        self._check(key.table, arithmetic, num * dtype.itemsize)
        older = [each for each in self._staged if each[:2] == key[:2] and each != key]
        for each in older[: len(older) + 1 - MOST_OF_A_TABLE]:
            del self._staged[each]
        staged = self._staged[key] = _Staged(piece.incarnation, num, dtype)
        return staged
