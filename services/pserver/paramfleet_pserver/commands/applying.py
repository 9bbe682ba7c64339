"""Steps of sync: what is pushed for each, which are applied, and by which version.

A step's last push, or a leave, makes it whole: its contributions go to the shards' owners in
rank order, at once, so that what is applied before it depends on the order of commands only.
When they have applied it the version of every table grows by one. Steps are applied one after
the other.

Used from one event loop; only the owners' jobs leave it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet_pserver.commands.modes import EVERY_MODE, ServerMode
from paramfleet_pserver.commands.worker_states import OLD_VERSIONS
from paramfleet_pserver.core.membership import StepMembers
from paramfleet_pserver.core.reservoir import CompleteStep, StepReservoir
from paramfleet_pserver.requests.checked import Mode, PushPart, PushRequest
from paramfleet_pserver.requests.row_requests import RemoveRequest, WriteRequest
from paramfleet_pserver.tables.capacity import Claims
from paramfleet_pserver.tables.old_values import OldVersions, StepBefore
from paramfleet_pserver.tables.owners import Job, Owners, when_done
from paramfleet_pserver.tables.parts import Stepping, is_stepping
from paramfleet_pserver.tables.table import Table
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.errors import FleetError
from paramfleet_shared.errors.served import VersionGoneError
from paramfleet_shared.values.ids import Rank, Step

__all__ = ["Kept", "StepApplier", "StepListener"]

log = logging.getLogger(__name__)

_RATES = (
    "the rate of the lowest rank counts, which isn't that of one process: step the schedule by "
    "optimizer.num_steps, or by epochs, where workers have other numbers of batches"
)


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
    norms: NDArray[np.float64] | None = None
    """Norms of the step's gradient that its worker was answered."""


class StepApplier(ServerMode):
    """sync: the steps of one job.

    Args:
        num_workers: Workers of the job.
        store: The tables; every step counts for all of them.
        owners: Who applies.
    """

    name: ClassVar[Mode] = "sync"
    operations = EVERY_MODE | {"push", "step", "total", "norm", "await_step"}
    in_step = True
    takes_all = True

    def __init__(self, *, num_workers: int, store: TableStore, owners: Owners) -> None:
        self._store = store
        self._owners = owners
        self.old: OldVersions | None = None
        """What the latest steps have changed, where workers may be some steps behind."""
        self.reservoir: StepReservoir[Kept] = StepReservoir(
            StepMembers(num_workers=num_workers)
        )
        self.confirmed: dict[Rank, Step] | None = None
        """By worker, before which step all of its parts are with every server, where a step
        waits for that; None where none does."""
        self._rates_differ = False
        """Whether workers had other learning rates in one step."""
        self._norms: dict[Step, NDArray[np.float64]] = {}
        """By step, norms of its gradient that pushes name; of some steps before, too."""
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
        kept = Kept(push.parts, claims, push.norms)
        self.reservoir.add(push.rank, push.step, push.weight, kept)
        self.note_norms(push)
        self.confirm(push.rank, push.step)  # who has come so far has seen the step before
        self._apply_whole()

    def note_norms(self, push: PushRequest) -> None:
        """Keep the norms that a push names, for workers that take the step later or again."""
        if push.norms is None:
            return
        self._norms[push.step] = push.norms
        for step in [each for each in self._norms if each < push.step - OLD_VERSIONS]:
            del self._norms[step]

    def norm_of(self, step: Step, number: int) -> float | None:
        """Return a norm of a step's gradient, if a push has named it."""
        norms = self._norms.get(step)
        return float(norms[number]) if norms is not None and number < len(norms) else None

    def await_confirmed(self) -> None:
        """Apply a step only when each part of it is known to be with all servers.

        So that all of them count the last part of a worker that dies, or none.
        """
        self.confirmed = {}

    def confirm(self, rank: Rank, step: Step) -> None:
        """Note that a worker's parts of all steps before ``step`` are with every server."""
        if self.confirmed is not None:
            self.confirmed[rank] = max(step, self.confirmed.get(rank, step))
            self._apply_whole()

    def retire(self, rank: Rank, step: Step) -> None:
        """Take a worker that died out of ``step`` and all after, and drop what it pushed."""
        for kept in self.reservoir.drop(rank, step):
            kept.claims.release()
        self.reservoir.leave(rank, step)
        self.confirm(rank, step)
        self._apply_whole()

    def lacks(self, rank: Rank, step: Step) -> bool:
        """Return whether a worker's part of a step before ``step`` isn't here."""
        left_at = self.reservoir.left().get(rank, step)
        return self.reservoir.next_of(rank) < min(step, left_at)

    def keep_old(self) -> None:
        """Let workers that are started again read the values of some steps ago."""
        self.old = OldVersions(OLD_VERSIONS)

    @override
    def before(self, version: int | None) -> Sequence[StepBefore]:
        """Return what takes the values back to a version; nothing for None, or for the newest.

        Raises:
            VersionGoneError: if it isn't kept any more.
        """
        begun = self.reservoir.next_step
        if version is None or version >= begun:
            return ()
        found = None if self.old is None else self.old.since(version, begun)
        if found is None:
            kept = 0 if self.old is None else len(self.old.steps())
            raise VersionGoneError(version=version, applied=begun, kept=kept)
        return found

    @override
    def begins(self, rank: Rank) -> Step:
        return self.reservoir.next_of(rank)

    @override
    def note_write(self, table: Table, by: str) -> None:
        del table, by
        if self.old is not None:
            self.old.clear()

    @override
    def check_rows(self, change: RemoveRequest | WriteRequest) -> None:
        self.reservoir.check_untouched(change.rank, change.step)

    @override
    def leave(self, rank: Rank, step: Step) -> None:
        """Take a worker out of ``step`` and all after.

        Raises:
            NotAMemberError: if the rank isn't one of the job's.
        """
        self.reservoir.leave(rank, step)
        self.confirm(rank, step)
        self._apply_whole()

    def _is_confirmed(self) -> bool:
        """Return whether each part of the step in progress is with all servers."""
        known, step = self.confirmed, self.reservoir.next_step
        if known is None:
            return True
        return all(known.get(rank, 0) > step for rank in self.reservoir.in_progress())

    def _apply_whole(self) -> None:
        """Hand over what is whole now, so that it comes before the jobs of the next command."""
        while self._is_confirmed() and (complete := self.reservoir.take()) is not None:
            if self.listener is not None:
                self.listener.step_begun()
            self._look_at_rates(complete)
            before = None if self.old is None else self.old.begin(complete.step)
            end = self._owners.start(_jobs(complete, self._store, before))
            self._begun.append((complete, end))
            when_done(end, self._count)

    def _look_at_rates(self, complete: CompleteStep[Kept]) -> None:
        """Log once that workers have other learning rates in one step."""
        if self._rates_differ:
            return
        rates: dict[str, tuple[Rank, float]] = {}
        for contribution in complete.contributions:
            for part in contribution.payload.parts:
                name = part.table.spec.name
                first, rate = rates.setdefault(name, (contribution.rank, part.lr))
                if part.lr != rate:
                    self._rates_differ = True
                    facts = {
                        "table": name,
                        "step": complete.step + 1,
                        "rates": f"{rate:g} of worker {first}, {part.lr:g} of worker "
                        f"{contribution.rank}",
                        "reason": _RATES,
                    }
                    log.warning("pserver.rates_differ", extra=facts)
                    return

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


def _jobs(
    complete: CompleteStep[Kept], store: TableStore, before: StepBefore | None
) -> list[Job]:
    """Make a step one update of every table that some worker has a gradient of.

    The learning rate and the rule's numbers of the lowest rank that has one count.

    What it changes is put aside in ``before``.
    """
    by_table: dict[str, list[tuple[PushPart, float]]] = {}
    for contribution in complete.contributions:
        for part in contribution.payload.parts:
            scaled = (part, contribution.scale)
            by_table.setdefault(part.table.spec.name, []).append(scaled)
    jobs: list[Job] = []
    for table in store:
        parts = by_table.get(table.spec.name, [])
        if parts:  # else no worker has a gradient of it
            contents = [part.content.scaled(scale) for part, scale in parts]
            if before is not None:
                jobs += before.keep_jobs(table, contents)
            is_update = any(map(is_stepping, contents))
            number = table.next_update() if is_update else table.num_updates
            first, _ = parts[0]
            jobs += table.update_jobs(contents, Stepping(first.lr, number, first.rule))
    return jobs
