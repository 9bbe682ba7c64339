"""A worker's answers to what pservers ask it, beside the training.

A request waits at each pserver until that has a question; the next one carries the answer.
It goes on until the first worker has left: what it saves at the end needs the others, too.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from paramfleet.transport.communicator import Communicator
from paramfleet.transport.leaving import Departure
from paramfleet.transport.pservers import PServers
from paramfleet.transport.requests import Author
from paramfleet_shared.errors import FleetError, OutcomeUnknownError, UnavailableError
from paramfleet_shared.net.wire.message import Message

__all__ = ["Answering"]

Answer = Callable[[Message], Message]

POLL_S = 30.0
"""Seconds that a request waits for a question."""

_PAUSE_S = 1.0
"""Seconds after a request that couldn't be sent."""

log = logging.getLogger(__name__)


class Answering:
    """One worker's answers.

    Args:
        communicator: Runs them.
        pservers: Who asks.
        author: This worker.
        departure: Whether it was asked to leave.
    """

    def __init__(
        self,
        communicator: Communicator,
        pservers: PServers,
        author: Author,
        departure: Departure,
    ) -> None:
        self._communicator = communicator
        self._pservers = pservers
        self._author = author
        self._departure = departure
        self._answers: dict[str, Answer] = {}
        self._num_asking = 0
        self._over = asyncio.Event()

    def begin(self, answers: Mapping[str, Answer]) -> None:
        """Answer from now on.

        Args:
            answers: By what a question is about. The background's threads call them.
        """
        self._answers |= answers
        if not self._num_asking:
            self._communicator.wait(self._start())

    def end(self) -> None:
        """Let the others go, in the first worker; in another one wait for that."""
        if self._author.rank == 0:
            self._communicator.wait(self.depart())
        elif self._num_asking:
            with self._departure.at_rest():
                self._communicator.wait(self._wait_over())

    async def depart(self) -> None:
        """Answer nothing any more; if this is the first worker, let the others go."""
        if self._author.rank and not self._num_asking:
            return
        fields = {**self._author.fields(), "to": 0, "ends": True}
        try:
            await self._pservers.call_all("answer", fields)
        except FleetError as error:
            log.info("worker.departure_unsaid", extra={"reason": str(error)})

    async def _start(self) -> None:
        self._over.clear()
        for server in range(self._pservers.placement.num_servers):
            self._num_asking += 1
            self._communicator.spawn(self._answer_all(server))

    async def _wait_over(self) -> None:
        await self._over.wait()

    async def _answer_all(self, server: int) -> None:
        """Answer one pserver until it asks no more."""
        answer, number = Message(), 0
        while True:
            fields = {**answer.fields, **self._author.fields(), "to": number}
            try:
                asked = await self._pservers.call_one(
                    server, "answer", fields, timeout_s=POLL_S, tensors=answer.tensors
                )
            except (UnavailableError, OutcomeUnknownError):
                await asyncio.sleep(_PAUSE_S)
                continue
            except FleetError as error:
                log.info("worker.answers_no_more", extra={"reason": str(error)})
                break
            if asked.fields["ends"]:
                break
            answer, number = Message(), int(asked.fields["number"])
            if number:
                about = self._answers.get(str(asked.fields["about"]))
                answer = Message(fields={"lack": "it has no such state"})
                if about is not None:
                    answer = await asyncio.to_thread(about, asked)
        self._num_asking -= 1
        if not self._num_asking:
            self._over.set()
