"""Has the groups of a running job spread over other numbers of pservers."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from paramfleet_shared.discovery.errors import NoCoordinatorError, NoRedisError
from paramfleet_shared.system.clock import Clock
from paramfleet_worker.app.finding import NoJobError, find_job
from paramfleet_worker.app.operating import (
    AdminAnswerError,
    AdminRefusedError,
    AdminUnreachableError,
    Operator,
    operator_of,
)

__all__ = ["Mover"]

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.25

_ASK_WITHIN_S = 3.0
"""The coordinator may be dead, and is asked again."""

_LEAST_UNAVAILABLE = 500
"""Statuses from here on say that the coordinator can't now; others refuse."""


class Mover:
    """Asks for numbers of pservers, one after the other, and counts what moves.

    A coordinator that dies forgets what was asked and what it counted: it is asked again until
    it has answered, and what each of its lives counts is added up. Belongs to one event loop.

    Args:
        job: Its name.
        environment: By which it is found.
        clock: Time.
    """

    def __init__(self, job: str, environment: Mapping[str, str], clock: Clock) -> None:
        self._job = job
        self._environment = environment
        self._clock = clock
        self._wanted: asyncio.Queue[int] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._last = 0
        self.num_moves = 0
        """Groups that have moved from one process to another."""
        self.problems: list[str] = []
        """What was refused."""

    def want(self, processes: int) -> None:
        """Have so many pservers, after those that were asked for before."""
        self._wanted.put_nowait(processes)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        """Ask for nothing more."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            if not self._wanted.empty():
                await self._scale(self._wanted.get_nowait())
            status = await self._ask(lambda operator: operator.get("status"))
            if status is not None:
                self._count(status["plan"]["moves"])
            await self._clock.sleep(_LOOK_EVERY_S)

    def _count(self, moves: int) -> None:
        began_anew = moves < self._last
        self.num_moves += moves - (0 if began_anew else self._last)
        self._last = moves

    async def _scale(self, processes: int) -> None:
        body = {"pservers": processes}
        while await self._ask(lambda operator: operator.post("scale", body)) is None:
            await self._clock.sleep(_LOOK_EVERY_S)

    async def _ask(self, what: Callable[[Operator], Any]) -> Any:
        """Return an answer; None if there is no coordinator now."""

        def ask() -> Any:
            given = {"job": self._job, "redis": None}
            found = find_job(given, self._environment, url="")
            return what(operator_of(found, timeout_s=_ASK_WITHIN_S))

        try:
            return await asyncio.to_thread(ask)
        except (
            AdminAnswerError,
            AdminUnreachableError,
            NoCoordinatorError,
            NoRedisError,
            NoJobError,
        ) as error:
            log.debug("the job's coordinator isn't there: %s", error)
        except AdminRefusedError as refusal:
            if refusal.status < _LEAST_UNAVAILABLE:
                self.problems.append(f"{refusal}")
                return {"plan": {"moves": self._last}}
        return None
