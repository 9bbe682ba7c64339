"""A group that this process follows: its copy, and the task that keeps it near the owner."""

import asyncio
import logging
from contextlib import suppress
from typing import Any

from paramfleet_pserver.following.follower import GroupFollower
from paramfleet_pserver.following.messages import Purpose
from paramfleet_pserver.hosting.group import GroupParts, store_of
from paramfleet_shared.discovery.plan import GroupPlan, ProcessId
from paramfleet_shared.discovery.session import JobSession
from paramfleet_shared.errors import FleetError
from paramfleet_shared.net.rpc.tracing import open_channel
from paramfleet_shared.net.secret import secret_of
from paramfleet_shared.net.tls import tls_of

__all__ = ["Following", "expected_of"]

NEAR_COMMANDS = 64
"""Who lags by no more commands may be handed the group."""

log = logging.getLogger(__name__)


def expected_of(plan: GroupPlan, owner: ProcessId) -> dict[str, Purpose]:
    """Return who is to follow a group, and for what: never its owner."""
    named: dict[str, Purpose] = {}
    if plan.target is not None:
        named[plan.target.text] = "move"
    if plan.follower is not None:
        named[plan.follower.text] = "replica"
    named.pop(owner.text, None)
    return named


class Following:
    """One copy, of one term of a group. Used from one event loop.

    Args:
        parts: Of the process.
        session: The process's.
        group: Which is followed.
        term: Of its owner.
        endpoint: Of the owner's data plane.
        purpose: As a replica, or to get the group.
    """

    def __init__(
        self,
        parts: GroupParts,
        session: JobSession,
        *,
        group: int,
        term: int,
        endpoint: str,
        purpose: Purpose,
    ) -> None:
        self.term = term
        self.purpose: Purpose = purpose
        self.store = store_of(
            parts, group, num_groups=session.server_num, num_shards=session.num_shards
        )
        tls = tls_of(parts.settings, "pserver")
        channel = open_channel(
            endpoint,
            tracing=parts.tracing,
            peer=f"pserver {group}",
            clock=parts.clock,
            resolve=None,
            tls=tls and tls.expects("pserver"),
            secret=secret_of(parts.settings),
        )
        self.follower = GroupFollower(
            group,
            term=term,
            channel=channel,
            follower=session.planning.process.text,
            purpose=purpose,
            store=self.store,
            owners=parts.owners,
            clock=parts.clock,
        )
        self._task = asyncio.get_running_loop().create_task(self._run())
        self.failed: FleetError | None = None
        """Why it can't follow any more; what is here may still be gone on with."""

    @property
    def is_near(self) -> bool:
        """Return whether it may be handed the group."""
        follower = self.follower
        return follower.is_whole and self.failed is None and follower.lag <= NEAR_COMMANDS

    @property
    def has_ended(self) -> bool:
        """Return whether it has stopped following."""
        return self._task.done()

    def facts(self) -> dict[str, Any]:
        """Return what an operator may ask."""
        return self.follower.facts()

    async def close(self) -> None:
        """Let the copy go."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self.follower.close()

    async def _run(self) -> None:
        try:
            await self.follower.run()
        except FleetError as error:
            self.failed = error
