"""Passes that workers write back: prepared in pieces on every pserver, then committed.

A pass is the whole of what workers have trained since the pass before it, by themselves. Each
sends what it has for a pserver in pieces, numbered from 0, which are kept. When all of them are
on all pservers a commit applies them; until then an abort drops them, and nothing has changed.
The passes of a job are committed one after the other, and numbered from 1.

Each worker names how many pieces there are with one of them, the last that it makes. So
a pserver knows by itself whether what it has is whole. A process that takes the place of one
that is gone asks for that, and then commits on all pservers or aborts on all.

One task owns a book. The functions that check change nothing; those that act can't fail after
them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, NamedTuple, TypeVar

from paramfleet_shared.errors.served import (
    PassCommittedError,
    PassInDoubtError,
    PassNotPreparedError,
    PassNumberError,
    PassPiecesError,
)
from paramfleet_shared.values.ids import Rank

__all__ = ["HeldPass", "PassBook", "PassState", "Piece"]

T = TypeVar("T")

PassState = Literal["absent", "partial", "prepared"]


class Piece(NamedTuple):
    """Which piece of which pass, and whose."""

    rank: Rank
    incarnation: int
    number: int
    """Of the pass, from 1."""
    piece: int
    """From 0."""
    pieces: int | None = None
    """How many the worker has for this pserver, if this piece says so."""


class HeldPass(NamedTuple):
    """What one worker has prepared."""

    rank: Rank
    incarnation: int
    number: int
    """Of the pass."""
    pieces: int
    """That are here."""
    sealed: bool
    """Whether these are all that it has for this pserver."""


@dataclass(slots=True)
class _Prepared(Generic[T]):
    """One worker's pieces of the pass that is next."""

    incarnation: int
    total: int | None = None
    contents: dict[int, T] = field(default_factory=dict)
    last: int = 0
    """The highest number of a piece."""

    @property
    def is_whole(self) -> bool:
        return self.total == len(self.contents)  # no piece is at or after the total

    def are_first(self, num: int) -> bool:
        """Return whether these are the pieces 0 to ``num`` - 1, and no others."""
        return len(self.contents) == num and max(self.contents) == num - 1

    def in_order(self) -> list[T]:
        return [self.contents[piece] for piece in sorted(self.contents)]


class PassBook(Generic[T]):
    """Which passes are committed, and what is prepared of the next one."""

    def __init__(self) -> None:
        self.committed = 0
        """Passes of this job that are, which is the number of the last."""
        self._prepared: dict[Rank, _Prepared[T]] = {}

    @property
    def state(self) -> PassState:
        """Return what is here of the next pass: nothing, a part, or all of all who began."""
        if not self._prepared:
            return "absent"
        are_whole = all(prepared.is_whole for prepared in self._prepared.values())
        return "prepared" if are_whole else "partial"

    def held(self) -> list[HeldPass]:
        """Return what is prepared, in the order of ranks."""
        number = self.committed + 1
        return [
            HeldPass(rank, own.incarnation, number, len(own.contents), own.is_whole)
            for rank, own in sorted(self._prepared.items())
        ]

    def content(self, rank: Rank, piece: int) -> T | None:
        """Return what a worker has prepared as a piece; None if it hasn't."""
        prepared = self._prepared.get(rank)
        return None if prepared is None else prepared.contents.get(piece)

    def pieces(self) -> Iterator[tuple[Piece, T]]:
        """Yield what is prepared; each names how many pieces there are, if one did."""
        number = self.committed + 1
        for rank, own in sorted(self._prepared.items()):
            for piece, content in sorted(own.contents.items()):
                yield Piece(rank, own.incarnation, number, piece, own.total), content

    def check_prepare(self, piece: Piece) -> bool:
        """Return True if a piece is new, False if it is here already.

        Raises:
            PassNumberError: if it is of another pass than the next one.
            PassInDoubtError: if another incarnation of the worker has prepared pieces.
            PassPiecesError: if it doesn't go with how many there are.
        """
        if piece.number != self.committed + 1:
            raise PassNumberError(number=piece.number, expected=self.committed + 1)
        prepared = self._prepared.get(piece.rank)
        if prepared is None:
            prepared = _Prepared(piece.incarnation)
        elif prepared.incarnation != piece.incarnation:
            raise PassInDoubtError(rank=piece.rank, number=piece.number)
        total = prepared.total if piece.pieces is None else piece.pieces
        last = max(piece.piece, prepared.last)
        differ = prepared.total not in {None, total}
        if total is not None and (differ or last >= total):
            raise PassPiecesError(
                rank=piece.rank, number=piece.number, piece=last, pieces=total
            )
        return piece.piece not in prepared.contents

    def prepare(self, piece: Piece, content: T) -> None:
        """Keep a piece that ``check_prepare`` finds new."""
        prepared = self._prepared.setdefault(piece.rank, _Prepared(piece.incarnation))
        prepared.contents[piece.piece] = content
        prepared.last = max(prepared.last, piece.piece)
        if piece.pieces is not None:
            prepared.total = piece.pieces

    def check_commit(self, number: int, pieces: Mapping[Rank, int] | None) -> bool:
        """Return True if a pass is to be committed, False if it was before.

        Args:
            number: Of the pass.
            pieces: How many each worker has prepared here; None for all that is prepared,
                if it is whole.

        Raises:
            PassNotPreparedError: if other pieces are here.
        """
        if number <= self.committed:
            return False
        prepared = self._prepared if number == self.committed + 1 else {}
        if pieces is None:
            self._check_whole(number, prepared)
            return True
        for rank in sorted(prepared.keys() | pieces.keys()):
            named, own = pieces.get(rank, 0), prepared.get(rank)
            if own is None or not own.are_first(named):
                held = 0 if own is None else len(own.contents)
                raise PassNotPreparedError(number=number, rank=rank, held=held, named=named)
        if number != self.committed + 1:
            raise PassNotPreparedError(number=number, rank=None, held=0, named=0)
        return True

    def _check_whole(self, number: int, prepared: Mapping[Rank, _Prepared[T]]) -> None:
        if not prepared:
            raise PassNotPreparedError(number=number, rank=None, held=0, named=None)
        for rank, own in sorted(prepared.items()):
            if not own.is_whole:
                held = len(own.contents)
                raise PassNotPreparedError(number=number, rank=rank, held=held, named=own.total)

    def commit(self) -> list[T]:
        """Count the next pass as committed; return its pieces, sorted by rank and number."""
        self.committed += 1
        return self._take()

    def check_abort(self, number: int) -> None:
        """Pass if a pass may be given up.

        Raises:
            PassCommittedError: if it is committed.
        """
        if number <= self.committed:
            raise PassCommittedError(number=number, committed=self.committed)

    def abort(self, number: int) -> list[T]:
        """Drop what is prepared of a pass, and return it; there may be nothing."""
        return self._take() if number == self.committed + 1 else []

    def leave(self, rank: Rank) -> list[T]:
        """Drop what a worker has prepared that left in good order, and return it."""
        prepared = self._prepared.pop(rank, None)
        return [] if prepared is None else prepared.in_order()

    def _take(self) -> list[T]:
        by_rank = [prepared for _, prepared in sorted(self._prepared.items())]
        taken = [content for prepared in by_rank for content in prepared.in_order()]
        self._prepared.clear()
        return taken
