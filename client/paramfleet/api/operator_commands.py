"""How a worker carries out the operator's commands: between two steps, in the training thread.

A script that calls ``fleet.should_stop()``, or takes its batches from
``fleet.prefetch``, ends its loop by itself when the job is to end, and then evaluates and
prints as it does at any end. Another script is ended at once, with status 0. A drained
worker always leaves immediately: the others continue, and would not reach its barriers.

During a pass of gpubox the pservers have nothing of it: a checkpoint waits for its end.
"""

import asyncio
import logging
import sys
from dataclasses import asdict
from typing import Any

from paramfleet.api.ordered_loads import OrderedLoads
from paramfleet.api.shrinking import Shrinking
from paramfleet.session.checkpoint.background import Outcome
from paramfleet.session.checkpoint.periodic import PeriodicCheckpoints
from paramfleet.session.checkpoint.saving import Saving
from paramfleet.session.session import Session
from paramfleet_shared.discovery.orders import CheckpointOrder, Orders, ShrinkOrder
from paramfleet_shared.errors import FleetError
from paramfleet_shared.files.addresses import place_of
from paramfleet_shared.system.clock import Clock, SystemClock

__all__ = ["Conduct"]

_POLL_S = 0.1
"""Seconds between two looks at the orders of a paused job."""

_IDLE_S = 0.5
"""Seconds between two looks at the orders of a worker that takes no steps for a while."""

log = logging.getLogger(__name__)


class Conduct:
    """Carries out orders for one session.

    Args:
        session: The session whose worker applies the commands.
        saving: Writes the checkpoints that are asked for.
        clock: For how long that took.
    """

    def __init__(self, session: Session, saving: Saving, clock: Clock | None = None) -> None:
        self._session = session
        self._saving = saving
        self._clock = clock or SystemClock()
        self._version = 0
        self._settings: dict[str, Any] = {}
        self._saved = 0
        self._shrunk = 0
        self._shrinking = Shrinking(session)
        self._waiting: CheckpointOrder | None = None
        """A checkpoint that was asked for during a pass, or while another is written."""
        self._looks = False
        self._periodic = PeriodicCheckpoints(session, saving, self._clock)
        self._loads = OrderedLoads(session, saving, self._clock)
        session.between_steps = self._between_steps
        session.before_leaving = self._before_leaving
        session.before_finishing = self._loads.before_finishing
        session.meeting = self._loads.meeting

    def should_stop(self) -> bool:
        """Return whether an operator ended the job: leave the loop over batches then.

        A script that calls this leaves the loop itself: its worker isn't ended before that.
        """
        self._looks = True
        orders = self._orders()
        return orders is not None and orders.ends

    def _between_steps(self) -> None:
        self._saving.background.look()
        self.apply_commands()
        self._save_what_waits()
        self._periodic.look()
        self._session.backend.between_steps()
        self._loads.between_steps()

    def between_passes(self) -> None:
        """Do what had to wait for the end of a pass: pservers have all of it now.

        Raises:
            FleetError: if the job failed meanwhile.
        """
        optimizer = self._session.optimizer
        if optimizer is None or optimizer.is_in_pass or self._session.stopped:
            return
        self._session.end_pass()
        self._saving.background.look()
        self._save_what_waits()
        self._periodic.look()

    @property
    def is_paused(self) -> bool:
        """Whether an operator has the job wait: a worker that waits for others has to, too."""
        orders = self._orders()
        return orders is not None and orders.paused

    def settle(self) -> None:
        """Return when the pservers have all that this worker has trained.

        Raises:
            CallOrderError: before ``fleet.init_worker`` and after ``fleet.stop_worker``.
            FleetError: if it can't be sent, or the job failed.
        """
        self._saving.settle()

    def idle(self, seconds: float) -> None:
        """Wait for data between two steps, and carry out commands; end when the job is to.

        Raises:
            SystemExit: if this worker's part is over, after it has left in good order.
            FleetError: if the job failed meanwhile.
        """
        until = self._clock.monotonic() + seconds
        while True:
            self._session.look_around()
            left = until - self._clock.monotonic()
            if left <= 0 or self.should_stop():
                return
            nap = self._clock.sleep(min(left, _IDLE_S))
            communicator = self._session.communicator
            if communicator is None:
                asyncio.run(nap)
            else:
                with self._session.times.during("wait"):
                    communicator.wait(nap)

    def _before_leaving(self) -> None:
        """Wait until what is being saved is written: the pservers end with the training."""
        self._saving.background.settle()
        self._save_what_waits()
        self._saving.background.settle()

    def _save_what_waits(self) -> None:
        optimizer = self._session.optimizer
        is_in_pass = optimizer is not None and optimizer.is_in_pass
        if self._waiting is None or is_in_pass or self._saving.background.is_busy:
            return
        waiting, self._waiting = self._waiting, None
        self._save(waiting)

    def apply_commands(self) -> None:
        """Apply newer orders; almost free of cost without any.

        Raises:
            SystemExit: if this worker's part is over, after it has left in good order.
            FleetError: if the job failed meanwhile.
        """
        orders = self._orders()
        if orders is None or orders.version == self._version:
            return
        communicator = self._session.communicator
        assert communicator is not None, "there are orders"
        while True:
            self._carry_out(orders)
            if not orders.paused or orders.ends:
                return
            with self._session.times.during("pause"):
                orders = communicator.wait(self._newer(orders))

    async def _newer(self, orders: Orders) -> Orders:
        """Return the next orders; the job's failure ends the wait."""
        while (newer := self._orders()) is None or newer.version == orders.version:
            await self._clock.sleep(_POLL_S)
        return newer

    def _orders(self) -> Orders | None:
        return self._session.backend.orders()

    def _carry_out(self, orders: Orders) -> None:
        self._version = orders.version
        optimizer = self._session.optimizer
        assert optimizer is not None, "it steps"
        for name, value in orders.settings.items():
            if name not in self._settings or self._settings[name] != value:
                self._settings[name] = value
                optimizer.adjust(name, value)
        order = orders.checkpoint
        if order is not None and order.number > self._saved:
            self._saved = order.number
            is_busy = self._saving.background.is_busy and not orders.paused
            if self._session.is_first_worker() and (optimizer.is_in_pass or is_busy):
                self._waiting = order
            elif self._session.is_first_worker():
                self._save(order)
        shrink = orders.shrink
        if shrink is not None and shrink.number > self._shrunk:
            self._shrunk = shrink.number
            if self._session.is_first_worker():
                self._shrink(shrink)
        self._session.progress.note(orders=orders.version)
        if self._session.worker_index() in orders.drained:
            log.info("worker.drained")
            self._session.depart()
            sys.exit(0)
        if orders.ends and not self._looks:
            log.info("worker.ended_by_operator")
            self._session.stop_worker()
            sys.exit(0)

    def _shrink(self, order: ShrinkOrder) -> None:
        """Remove rows, or count those that would go; a failure is told, and ends nothing."""
        rows: dict[str, int] = {}
        error = ""
        try:
            rows = self._shrinking.shrink(order.table or None, dry_run=order.dry_run)
        except FleetError as failed:
            error = str(failed)
        self._session.progress.note(shrink={**asdict(order), "rows": rows, "error": error})
        self._session.raise_if_failed()

    def _save(self, order: CheckpointOrder) -> None:
        """Begin a checkpoint; a failure is reported, and ends nothing."""

        def end(done: Outcome) -> None:
            self._session.progress.note(checkpoint={"number": order.number, **done})

        self._saving.background.start(self._saving.begin, place_of(order.dirname), end)
        self._session.raise_if_failed()
