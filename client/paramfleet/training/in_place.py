"""Dense tables that are too large to be copied: they move in place, a piece at a time.

A piece is the same part of every pserver's range. It goes between the parameters themselves
and the pservers, which apply it at once, while the training thread waits. So neither end has
more of a table a second time than the pieces on their way. An error leaves the pieces before
it where they went.

Legend: n = values of a pserver's part of a piece.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet.tables.dense import DenseBlock
from paramfleet.training.job import Job
from paramfleet.transport.pservers import PIECES_AT_ONCE, ends_of
from paramfleet.transport.requests import Read, ReadPlan, dense_slice
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.dense import pieces_of
from paramfleet_shared.tables.encoding import WireDtype
from paramfleet_shared.tables.rowstore import check_array
from paramfleet_shared.values.spans import Span, moved

__all__ = ["Change", "InPlace", "moves_in_place"]

Numbers = Callable[[DenseBlock, slice], NDArray[np.float32]]
"""Returns what is sent for some values of a block, float32 [n]. Other threads call it, once
for each value, while the training thread waits."""

Received = Callable[[DenseBlock, slice, NDArray[np.float32]], None]
"""Takes what the pservers hold of some values of a block, float32 [n]; called as ``Numbers``,
behind it."""


def moves_in_place(job: Job, blocks: Sequence[DenseBlock], wire: WireDtype) -> bool:
    """Return whether tables move in place, where workers don't wait for one another.

    Narrow numbers need a memory of what they lose, as long as the table: they are copied.

    Args:
        job: Whose limits count.
        blocks: All tables.
        wire: How their numbers travel.
    """
    num_bytes = sum(block.size for block in blocks) * 4
    return num_bytes > job.pservers.dense.in_place_bytes and wire == "float32"


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """What is done to the tables. The caller ends its step by a message of its own."""

    op: Literal["push", "exchange"]
    fields: Mapping[str, Any]
    """Of each message, beside its part."""
    numbers: Numbers
    """What is sent."""
    part_fields: Callable[[DenseBlock], Mapping[str, Any]]
    """More of each part of a block."""
    received: Received | None = None
    """Takes what an exchange is answered with."""
    spans: Callable[[DenseBlock], tuple[Span, ...] | None] = lambda _block: None
    """Returns which values of a block have a gradient; None for all."""
    guarded: Numbers | None = None
    """As ``numbers``, but it changes nothing: called first, where the pservers judge an
    update by the length of all its numbers, as they do with several workers."""


class _Piece(NamedTuple):
    """A part of each pserver's range; it has no values where a range is shorter."""

    inside: tuple[slice, ...]
    """Which values of the pserver's range."""
    values: tuple[slice, ...]
    """Which values of the block these are."""


class _Update(NamedTuple):
    """What the pieces of one block's update have in common."""

    first: int
    """The first message's sequence."""
    squares: Sequence[float]
    """The squared length of each pserver's numbers; 0 where it doesn't matter."""


class InPlace:
    """The dense tables of one worker. The training thread owns it.

    Args:
        job: The worker's connections.
        blocks: The tables, declared already. Nothing else changes them.
    """

    def __init__(self, job: Job, blocks: Sequence[DenseBlock]) -> None:
        self._job = job
        self._blocks = blocks

    def pull(self, received: Received | None = None) -> None:
        """Install the pservers' values.

        Args:
            received: Takes the values instead.

        Raises:
            FleetError: if a pserver didn't answer, or the job failed.
        """
        self._job.communicator.wait(self._pull(received or _install))

    def change(self, change: Change, *, blocks: Sequence[DenseBlock] | None = None) -> None:
        """Send what changes the tables, and take what it is answered with.

        Args:
            change: What is done.
            blocks: Some of the tables; None for all.

        Raises:
            FleetError: if a pserver didn't answer or refused a piece, or the job failed.
        """
        chosen = self._blocks if blocks is None else blocks
        self._job.communicator.wait(self._change(change, chosen))

    async def _pull(self, received: Received) -> None:
        for block in self._blocks:
            reading = (self._pull_piece(block, each, received) for each in self._pieces(block))
            await ends_of(reading, at_once=PIECES_AT_ONCE)

    async def _pull_piece(self, block: DenseBlock, piece: _Piece, received: Received) -> None:
        where = max(piece.inside, key=lambda inside: inside.stop - inside.start)
        read = Read(table=block.name, size=block.size, piece=where)
        plan = ReadPlan([read], self._job.placement)
        rank = self._job.author.rank
        answers = await self._job.pservers.pull(plan, rank=rank, min_step=0)
        await asyncio.to_thread(_take, block, piece, answers, received)

    async def _change(self, change: Change, blocks: Sequence[DenseBlock]) -> None:
        for block in blocks:
            squares = [0.0] * self._job.placement.num_servers
            if change.guarded is not None and not self._is_alone:
                squares = await asyncio.to_thread(self._squares, block, change.guarded)
            await ends_of(self._sending(change, block, squares), at_once=PIECES_AT_ONCE)

    def _sending(
        self, change: Change, block: DenseBlock, squares: Sequence[float]
    ) -> Iterator[Coroutine[None, None, None]]:
        update: _Update | None = None
        for piece in self._pieces(block):
            head = self._job.author.change()
            update = update or _Update(head["sequence"], squares)
            yield self._send_piece(change, block, piece, update, head)

    async def _send_piece(
        self,
        change: Change,
        block: DenseBlock,
        piece: _Piece,
        update: _Update,
        head: Mapping[str, Any],
    ) -> None:
        def messages() -> list[Message]:
            return [
                self._message(change, block, (inside, where), (update, head), square)
                for inside, where, square in zip(*piece, update.squares, strict=True)
            ]

        try:
            sent = await asyncio.to_thread(messages)
        except BaseException:
            self._job.pservers.give_up(head)
            raise
        answers = await self._job.pservers.change(change.op, sent)
        if change.received is not None:
            await asyncio.to_thread(_take, block, piece, answers, change.received)

    def _message(
        self,
        change: Change,
        block: DenseBlock,
        piece: tuple[slice, slice],
        update: tuple[_Update, Mapping[str, Any]],
        square: float,
    ) -> Message:
        (inside, where), ((first, _), head) = piece, update
        part = {
            "table": block.name,
            "update": first,
            "start": inside.start,
            "stop": inside.stop,
            "square": square,
            **change.part_fields(block),
        }
        fields = {**head, **change.fields}
        name = "0.grads" if change.op == "push" else "0.deltas"
        tensors: dict[str, NDArray[Any]] = {name: change.numbers(block, where)}
        spans = change.spans(block)
        if spans is not None:
            own = moved(spans, (where.start, where.stop))
            places = np.array(own, np.int64).reshape(-1, 2) + inside.start
            tensors["0.spans"] = places
        return Message(fields={**fields, "continues": True, "parts": [part]}, tensors=tensors)

    def _pieces(self, block: DenseBlock) -> Iterator[_Piece]:
        ranges = self._ranges(block)
        most = self._job.pservers.dense.piece_values
        longest = max(each.stop - each.start for each in ranges)
        for start in range(0, longest, most):
            lengths = [each.stop - each.start for each in ranges]
            inside = [slice(min(start, n), min(start + most, n)) for n in lengths]
            values = [
                slice(each.start + part.start, each.start + part.stop)
                for each, part in zip(ranges, inside, strict=True)
            ]
            yield _Piece(tuple(inside), tuple(values))

    @property
    def _is_alone(self) -> bool:
        """Whether no other worker can change the tables: then pservers guard nothing."""
        return self._job.worker_num == 1 and not self._job.communicator.session.elastic

    def _ranges(self, block: DenseBlock) -> list[slice]:
        placement = self._job.placement
        servers = range(placement.num_servers)
        return [dense_slice(block.size, placement, server) for server in servers]

    def _squares(self, block: DenseBlock, numbers: Numbers) -> list[float]:
        """Return the squared length of each pserver's numbers."""
        squares = []
        for where in self._ranges(block):
            square = 0.0
            for piece in pieces_of(where.stop - where.start):
                flat = numbers(
                    block, slice(where.start + piece.start, where.start + piece.stop)
                )
                square += float(np.dot(flat, flat))
            squares.append(square)
        return squares


def _take(
    block: DenseBlock, piece: _Piece, answers: Sequence[Message], received: Received
) -> None:
    """Take what each pserver holds of a piece.

    Raises:
        RowShapeError: if an answer isn't what was asked for.
    """
    for where, answer in zip(piece.values, answers, strict=True):
        rows = answer.tensors["0.rows"]
        check_array(rows, np.float32, (where.stop - where.start,), table=block.name)
        received(block, where, rows)


def _install(block: DenseBlock, where: slice, values: NDArray[np.float32]) -> None:
    block.install_piece(where.start, values)
