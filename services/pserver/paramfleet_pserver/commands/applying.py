"""Steps of sync: what is pushed for each, which are applied, and by which version.

A step's last push, or a leave, makes it whole: its contributions go to the shards' owners in
rank order, at once, so that what is applied before it depends on the order of commands only.
When they have applied it the version of every table grows by one. Steps are applied one after
the other.

Used from one event loop; only the owners' jobs leave it.
"""

import asyncio
from collections import deque
from typing import ClassVar, NamedTuple, Protocol

from typing_extensions import override

from paramfleet_pserver.commands.modes import EVERY_MODE, ServerMode
from paramfleet_pserver.core.membership import StepMembers
from paramfleet_pserver.core.reservoir import CompleteStep, StepReservoir
from paramfleet_pserver.requests.checked import Mode, PushPart, PushRequest
from paramfleet_pserver.requests.remove_requests import RemoveRequest
from paramfleet_pserver.tables.capacity import Claims
from paramfleet_pserver.tables.owners import Job, Owners, when_done
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.errors import FleetError
from paramfleet_shared.values.ids import Rank, Step

__all__ = ["Kept", "StepApplier", "StepListener"]


class StepListener(Protocol):
    """Learns how far the steps have come."""

    def step_begun(self) -> None:
        """Act on a step that every member has pushed, and that is being applied now."""
        ...

    def step_applied(self, version: int) -> None:
        """Act on a version that every table has reached."""
        ...

    def step_failed(self, error: FleetError) -> None:
        """Act on a step that was applied in part; none follows."""
        ...


class Kept(NamedTuple):
    """A worker's push until its step is applied."""

    parts: tuple[PushPart, ...]
    claims: Claims
    """Room for the rows that it creates."""


class StepApplier(ServerMode):
    """sync: the steps of one job.

    Args:
        num_workers: Workers of the job.
        store: The tables; every step counts for all of them.
        owners: Who applies.
    """

    name: ClassVar[Mode] = "sync"
    operations = EVERY_MODE | {"push", "step", "total"}
    in_step = True
    takes_all = True

    def __init__(self, *, num_workers: int, store: TableStore, owners: Owners) -> None:
        self._store = store
        self._owners = owners
        self.reservoir: StepReservoir[Kept] = StepReservoir(
            StepMembers(num_workers=num_workers)
        )
        self.listener: StepListener | None = None
        self.version = 0
        """Steps applied."""
        self._begun = deque[tuple[CompleteStep[Kept], asyncio.Future[None]]]()
        """Steps that owners were given, with their ends, until they are counted."""

    @property
    @override
    def applied(self) -> int:
        return self.version

    @property
    @override
    def under_way(self) -> set[asyncio.Future[None]]:
        return {end for _, end in self._begun}

    def keep(self, push: PushRequest, claims: Claims) -> None:
        """Keep a worker's push; if the step is whole now, begin to apply it.

        Args:
            push: What ``reservoir.check`` lets pass.
            claims: Room for the rows that it creates, held until the step is applied.
        """
        kept = Kept(push.parts, claims)
        self.reservoir.add(push.rank, push.step, push.weight, kept)
        self._apply_whole()

    @override
    def check_removal(self, remove: RemoveRequest) -> None:
        self.reservoir.check_untouched(remove.rank, remove.step)

    @override
    def leave(self, rank: Rank, step: Step) -> None:
        """Take a worker out of ``step`` and all after.

        Raises:
            NotAMemberError: if the rank isn't one of the job's.
        """
        self.reservoir.leave(rank, step)
        self._apply_whole()

    def _apply_whole(self) -> None:
        """Hand over what is whole now, so that it comes before the jobs of the next command."""
        while (complete := self.reservoir.take()) is not None:
            if self.listener is not None:
                self.listener.step_begun()
            end = self._owners.start(_jobs(complete, self._store))
            self._begun.append((complete, end))
            when_done(end, self._count)

    def _count(self, _: asyncio.Future[None]) -> None:
        """Count steps that are applied, in their order: owners may end a later one first."""
        while self._begun and self._begun[0][1].done():
            complete, end = self._begun.popleft()
            for contribution in complete.contributions:
                contribution.payload.claims.release()
            if self.damage is None:
                self._note_end(complete, end.exception())

    def _note_end(self, complete: CompleteStep[Kept], error: BaseException | None) -> None:
        if error is not None:
            damage = self.note_damage(complete.step, error)
            if self.listener is not None:
                self.listener.step_failed(damage)
            return
        self.version = complete.step + 1
        for table in self._store:
            table.version = self.version
        if self.listener is not None:
            self.listener.step_applied(self.version)


def _jobs(complete: CompleteStep[Kept], store: TableStore) -> list[Job]:
    """Make a step one update of every table; the lowest rank's learning rate counts."""
    by_table: dict[str, list[tuple[PushPart, float]]] = {}
    for contribution in complete.contributions:
        for part in contribution.payload.parts:
            scaled = (part, contribution.scale)
            by_table.setdefault(part.table.spec.name, []).append(scaled)
    jobs: list[Job] = []
    for table in store:
        step = table.next_update()
        parts = by_table.get(table.spec.name, [])
        if parts:
            lr = parts[0][0].lr
            contents = [part.content.scaled(scale) for part, scale in parts]
            jobs += table.update_jobs(contents, lr=lr, step=step)
    return jobs
