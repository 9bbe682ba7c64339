"""Questions to workers: a worker asks what it is asked, and waits until there is something.

A pserver knows no way to a worker but the answer to a request. So a worker leaves one here,
``answer``, which is answered with a question; its next one carries what it was asked for. Both
may be repeated: a question stands until its answer is here.
"""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import count
from typing import NamedTuple

from paramfleet_pserver.waiting.waiters import Parking
from paramfleet_shared.errors import FleetError, UnavailableError
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.system.clock import Clock
from paramfleet_shared.values.ids import Rank

__all__ = ["Asking", "Question"]

FIRST = Rank(0)
"""The worker that saves: when it has left, nothing is asked."""

PATIENCE_S = 10.0
"""Seconds that a worker has for an answer."""


class Question(NamedTuple):
    """What one worker is asked."""

    number: int
    message: Message
    answer: "asyncio.Future[Message]"


class Asking:
    """The questions of one server. Used from one event loop.

    Args:
        clock: By whose time deadlines are meant.
        patience_s: Seconds that a worker has for an answer.
    """

    def __init__(self, clock: Clock, *, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._open: dict[Rank, Question] = {}
        self._gone: set[Rank] = set()
        self._ends = False
        self._parking: Parking[Rank] = Parking(clock=clock)
        self._numbers = count(1)

    def is_over(self, rank: Rank) -> bool:
        """Return whether a worker will be asked nothing any more."""
        return self._ends or rank in self._gone

    @property
    def gone(self) -> frozenset[Rank]:
        """Workers that left or were lost, and did not come again."""
        return frozenset(self._gone)

    async def serve(
        self, rank: Rank, to: int, answer: Message, *, deadline: float | None
    ) -> Question | None:
        """Take an answer, and return the next question once there is one.

        Args:
            rank: Which worker.
            to: Number of the question that is answered; 0 for none.
            answer: What it says.
            deadline: Of the request, in the clock's time.

        Returns:
            None if nothing was asked in time, or nothing will be any more.

        Raises:
            UnavailableError: if that is how the job has failed.
        """
        asked = self._open.get(rank)
        if asked is not None and asked.number == to:
            del self._open[rank]
            if not asked.answer.done():
                asked.answer.set_result(answer)
        if rank not in self._open and not self.is_over(rank):
            nothing = UnavailableError("nothing was asked in time")
            try:
                await self._parking.wait(rank, deadline=deadline, late=lambda _: nothing)
            except UnavailableError as error:
                if error is nothing:
                    return None
                raise
        return self._open.get(rank)

    async def ask(self, ranks: Sequence[Rank], message: Message) -> Mapping[Rank, Message]:
        """Ask workers the same, and return the answers of those that gave one in time."""
        loop = asyncio.get_running_loop()
        asked = {
            rank: Question(next(self._numbers), message, loop.create_future()) for rank in ranks
        }
        self._open |= asked
        self._parking.wake(ranks)
        if asked:
            await asyncio.wait(
                [each.answer for each in asked.values()], timeout=self._patience_s
            )
        found = {}
        for rank, question in asked.items():
            if question.answer.done() and not question.answer.cancelled():
                found[rank] = question.answer.result()
            elif self._open.get(rank) is question:
                del self._open[rank]
        return found

    def leave(self, rank: Rank) -> None:
        """Ask a worker nothing any more; one that waits for an answer goes on without."""
        self._gone.add(rank)
        question = self._open.pop(rank, None)
        if question is not None:
            question.answer.cancel()
        self._parking.wake([rank])
        if rank == FIRST:
            self.end()

    def join(self, rank: Rank) -> None:
        """Ask a worker that left before again, and all others where the first one is back."""
        self._gone.discard(rank)
        self._ends = self._ends and rank != FIRST

    def end(self) -> None:
        """Let all workers go: nothing will be asked."""
        self._ends = True
        self._parking.wake(self._parking.awaited())

    def fail(self, error: FleetError) -> None:
        """Fail all that wait, and all that will."""
        self._parking.fail(error)
