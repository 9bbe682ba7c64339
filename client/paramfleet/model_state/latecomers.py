"""The buffers with which a worker that comes late to an elastic job begins.

Now and then the worker with the lowest rank puts its buffers down, through Redis and beside the
training. Who comes late takes them, and waits for nobody.
"""

import logging
from concurrent.futures import Future

from paramfleet.model_state.agreement import Agreement
from paramfleet.transport.communicator import Communicator
from paramfleet_shared.errors import FleetError
from paramfleet_shared.system.clock import Clock

__all__ = ["BOARD", "PERIOD_S", "BuffersForLate", "take_current_buffers"]

BOARD = "fleet.buffers"
"""Under which name they are put down."""

PERIOD_S = 5.0
"""Seconds between two times, at least."""

_SHARE = 0.01
"""Part of the time that putting them down may take: large ones are put down less often."""

log = logging.getLogger(__name__)


class BuffersForLate:
    """Puts one worker's buffers down when it is time; the training thread owns it.

    Args:
        clock: For when.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due = 0.0
        self._began = 0.0
        self._under_way: Future[None] | None = None

    def look(self, communicator: Communicator, agreement: Agreement) -> None:
        """Put them down if it is time; called between two steps, costs little else.

        Args:
            communicator: Of a worker that takes steps.
            agreement: Of its model.
        """
        now = self._clock.monotonic()
        if now < self._due or not communicator.session.elastic or not agreement.has_state:
            return
        if self._under_way is not None:
            if self._under_way.done():
                self._end(self._under_way, now)
            return
        self._began = now
        payload = agreement.payload(say="all")
        board = communicator.session.board
        self._under_way = communicator.submit(board.put_if_first(BOARD, payload))

    def _end(self, put: Future[None], now: float) -> None:
        """Choose the next time; a failure is logged, and ends nothing."""
        self._under_way = None
        self._due = self._began + max(PERIOD_S, (now - self._began) / _SHARE)
        error = put.exception()
        if isinstance(error, FleetError):
            log.warning("worker.buffers_not_put_down", extra={"reason": str(error)})
        elif error is not None:
            raise error


def take_current_buffers(communicator: Communicator, agreement: Agreement) -> None:
    """Have a worker that comes late begin with the buffers that others train with.

    Those that don't fit, and all if nobody has taken a step yet, stay its own.

    Raises:
        NoRedisError: if Redis stays away.
    """
    if not agreement.has_state:
        return
    payload = communicator.wait(communicator.session.board.read(BOARD))
    if payload is None:
        return
    for problem in agreement.take([payload], spares=True):
        log.warning("worker.buffers_differ", extra={"reason": str(problem)})
