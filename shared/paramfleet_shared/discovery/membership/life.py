"""Whether a job still runs, and waits that end when it doesn't."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from paramfleet_shared.discovery.orders import Orders
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.discovery.plan import Plan
from paramfleet_shared.discovery.records import JobRecord, Lost
from paramfleet_shared.errors import FleetError, JobFailedError

__all__ = ["JobLife"]


class JobLife:
    """The state of a job as one member knows it; the first end that it receives stays."""

    def __init__(self) -> None:
        self._failure: FleetError | None = None
        self._finished = False
        self.record: JobRecord | None = None
        """The newest that was read from the registry; None before the first."""
        self.lost: tuple[Lost, ...] = ()
        self.orders = Orders()
        """The newest that were read from the registry."""
        self.placement: Placement | None = None
        """The newest that was read from the registry; None before the first."""
        self.plan: Plan | None = None
        """The newest that was read from the registry, or from the coordinator."""
        self._waits: set[asyncio.Timeout] = set()

    @property
    def failure(self) -> FleetError | None:
        """Return why the job ended badly; None while it hasn't."""
        return self._failure

    @property
    def finished(self) -> bool:
        """Return whether the job has finished well."""
        return self._finished

    def note(self, record: JobRecord | None) -> None:
        """Take the registry's record; None, as from an empty Redis, changes nothing."""
        if record is None:
            return
        self.record = record
        self.lost = record.lost
        if record.failure is not None:
            failure = record.failure
            self.end_badly(
                JobFailedError(role=failure.role, index=failure.index, reason=failure.reason)
            )
        self._finished = self._finished or record.state == "finished"
        if record.orders.version > self.orders.version:
            self.orders = record.orders
        if record.placement:
            self.note_placement(Placement.from_wire(dict(record.placement)))
        if record.plan is not None:
            self.note_plan(Plan.from_wire(dict(record.plan)))

    def note_placement(self, placement: Placement) -> None:
        """Take a placement, unless a newer one is known: a registry with old data has older."""
        known = self.placement.epoch if self.placement is not None else 0
        if placement.epoch > known:
            self.placement = placement

    def note_plan(self, plan: Plan) -> None:
        """Take a plan, unless a newer one is known."""
        if self.plan is None or plan.version > self.plan.version:
            self.plan = plan

    def end_badly(self, error: FleetError) -> None:
        """Note a failure, and end every wait."""
        if self._failure is not None or self._finished:
            return
        self._failure = error
        now = asyncio.get_running_loop().time()
        for wait in self._waits:
            wait.reschedule(now)

    def raise_failure(self) -> None:
        """Raise the failure if there is one, as a new instance, because many tasks raise it."""
        if self._failure is not None:
            raise type(self._failure)(**self._failure.facts)

    @asynccontextmanager
    async def until_failure(self) -> AsyncIterator[None]:
        """Bound a wait by the job's life: a failure ends it at once and is raised.

        Raises:
            TimeoutError: if the body raised one of its own.
        """
        self.raise_failure()
        try:
            async with asyncio.timeout(None) as wait:
                self._waits.add(wait)
                try:
                    yield
                finally:
                    self._waits.discard(wait)
        except TimeoutError:
            self.raise_failure()
            raise
