"""A process that hosts the groups that the coordinator plans for it, several or none.

It joins as a process, reads the plan whenever that changes, and lets each group's ``Part`` do
what it says. It ends with the job, or when it was asked to and has given up all it had.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from paramfleet_pserver.hosting.folders import held
from paramfleet_pserver.hosting.group import GroupParts, HostedGroup
from paramfleet_pserver.hosting.part import Hoster, Part
from paramfleet_shared.discovery.plan import GroupPlan, Plan
from paramfleet_shared.discovery.records import PROCESS
from paramfleet_shared.discovery.session import JobSession
from paramfleet_shared.errors import (
    FleetError,
    JobFailedError,
    OutcomeUnknownError,
    UnavailableError,
)
from paramfleet_shared.errors.following import NobodyTakesOverError
from paramfleet_shared.telemetry.seldom import SeldomWarning
from paramfleet_shared.values.versions import versions

__all__ = ["Host"]

PARK_S = 5.0
"""Seconds that the coordinator holds a request for a newer plan."""

PAUSE_S = 0.2
"""Seconds after a request for it that failed."""

PUBLISH_PERIOD_S = 1.0

ALONE_S = 5.0
"""Seconds in which another process may come that takes the groups of one that is to end."""

COORDINATOR_S = 15.0
"""Seconds in which a coordinator may come back to be asked for that."""

log = logging.getLogger(__name__)


class Host:
    """The groups of one process. Used from one event loop.

    Args:
        parts: What they share.
        session: The process's place in the job.
        admin: ``host:port`` of the admin address.
        port: Of one of the groups; 0 for a free one.
    """

    def __init__(
        self, parts: GroupParts, session: JobSession, *, admin: str, port: int
    ) -> None:
        self._parts = parts
        self._clock = parts.clock
        self.session = session
        self._port = port
        hoster = Hoster(
            parts=parts,
            session=session,
            admin=admin,
            take_port=self._take_port,
            describe=self._describe,
        )
        self._all = [Part(hoster, group) for group in range(session.server_num)]
        self._unread = SeldomWarning(log, "group.folder_not_read", parts.clock)
        self._ended = asyncio.Event()
        """Set when there is nothing to do any more."""
        self.has_drained = False
        """Whether it has given up all that it had, as it was asked to."""

    @classmethod
    async def join(cls, parts: GroupParts, *, admin: str) -> "Host":
        """Join the job as a process.

        Raises:
            FleetError: as ``JobSession.join``.
        """
        settings = parts.settings
        session = await JobSession.join(
            settings,
            role=PROCESS,
            index=settings.index,
            endpoint="",
            admin=admin,
            clock=parts.clock,
            tracing=parts.tracing,
        )
        return cls(parts, session, admin=admin, port=settings.port)

    @property
    def groups(self) -> Sequence[HostedGroup]:
        """Return the groups that are hosted now."""
        return [part.hosted for part in self._all if part.hosted is not None]

    @property
    def is_serving(self) -> bool:
        """Return whether all that the plan gives to this process is served."""
        return self.session.life.plan is not None and all(each.is_serving for each in self._all)

    @property
    def keeps_copies(self) -> bool:
        """Return whether what it has may be gone on with elsewhere when it ends."""
        durable = self._parts.settings.durability != "none"
        return durable or not self.groups or self.session.replicas > 0

    def facts(self) -> dict[str, Any]:
        """Return what an operator may ask, in plain values."""
        tables = [table for group in self.groups for table in group.facts()["tables"]]
        return {
            "tables": tables,
            "groups": [
                {"group": group.index, "term": group.term, **group.facts()}
                for group in self.groups
            ],
            "follows": [facts for part in self._all if (facts := part.facts()) is not None],
        }

    async def live(self) -> None:
        """Host until the job ends, or all was given up.

        Raises:
            FleetError: why it ended badly.
        """
        loop = asyncio.get_running_loop()
        member = loop.create_task(self.session.run())
        works = [
            member,
            loop.create_task(self._watch_plan()),
            loop.create_task(self._publish()),
            *(loop.create_task(part.run()) for part in self._all),
        ]
        ended = loop.create_task(self._ended.wait())
        try:
            done, _ = await asyncio.wait((*works, ended), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled() and (error := task.exception()) is not None:
                    raise error
        except FleetError as error:
            if not isinstance(error, JobFailedError):  # which whoever runs this process says
                log.error("pserver.failed", extra={"reason": str(error)})  # noqa: TRY400 -- named
            for group in self.groups:
                if group.routes is not None:
                    group.routes.fail(error)
            raise
        finally:
            for task in (*works, ended):
                task.cancel()
            await asyncio.gather(*works, ended, return_exceptions=True)

    async def drain(self) -> None:
        """Ask for the groups to be given to others, and return when they are.

        The caller has a deadline. Errors of the coordinator are tried again for a while.

        Raises:
            UnavailableError: if the coordinator doesn't answer.
            NobodyTakesOverError: if no other process lives that could take them.
        """
        await self._ask_to_drain()
        while not self._ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(ALONE_S):
                    await self._ended.wait()
            plan = self.session.life.plan
            if plan is not None and not self._ended.is_set() and not plan.others_live():
                raise NobodyTakesOverError

    async def _ask_to_drain(self) -> None:
        last = self._clock.monotonic() + COORDINATOR_S
        while True:
            try:
                await self.session.planning.drain()
            except (UnavailableError, OutcomeUnknownError):
                if self._clock.monotonic() >= last:
                    raise
                await self._clock.sleep(PAUSE_S)
            else:
                return

    async def close(self) -> None:
        """Let all go, and leave the job."""
        for part in self._all:
            await part.close()
        await self.session.leave()

    async def _watch_plan(self) -> None:
        """Read each new plan, and have the parts do what it says.

        Raises:
            FleetError: if this process is no member any more, or the job has failed.
        """
        planning, life = self.session.planning, self.session.life
        known = 0
        while True:
            settings, run_id = self._parts.settings, self.session.run_id
            holds = await asyncio.to_thread(held, settings, run_id, self._warn_of_folder)
            try:
                await planning.wait(
                    since=known, park_s=PARK_S, holds=holds, knows=self._knows()
                )
            except (UnavailableError, OutcomeUnknownError):  # heartbeats bring it, too
                await self._clock.sleep(PAUSE_S)
            plan = life.plan
            if plan is not None and plan.version > known:
                known = plan.version
                self._note(plan)

    def _warn_of_folder(self, path: Path, reason: str) -> None:
        """Say that a group may be on this disk, and nobody is told so."""
        self._unread.warn(path=str(path), reason=reason)

    def _knows(self) -> dict[int, GroupPlan]:
        """Return what is known of groups to be in the registry."""
        plan = self.session.life.plan
        if plan is None:
            return {}
        known = {
            group: part.known(own)
            for group, (part, own) in enumerate(zip(self._all, plan.groups, strict=True))
        }
        return {group: own for group, own in known.items() if own.term}

    def _note(self, plan: Plan) -> None:
        for part, own in zip(self._all, plan.groups, strict=True):
            part.note_plan(own)
        if plan.may_end(self.session.planning.process):
            log.info("pserver.drained")
            self.has_drained = True
            self._ended.set()

    async def _publish(self) -> None:
        while True:
            follows = [facts for part in self._all if (facts := part.facts()) is not None]
            facts = {"follows": follows, "versions": versions()}
            await self.session.publish(facts)
            await self._clock.sleep(PUBLISH_PERIOD_S)

    def _describe(self, group: HostedGroup) -> dict[str, Any]:
        """Return what is said of a group to the job."""
        return {
            "role": "pserver",
            "state": group.state,
            "index": group.index,
            "incarnation": group.term,
            "uptime_s": round(group.service.seconds, 3),
            "service": group.service.facts(),
            **group.facts(),
        }

    def _take_port(self) -> int:
        """Return the port of the settings while no group has it; else 0."""
        port, self._port = self._port, 0
        return port
