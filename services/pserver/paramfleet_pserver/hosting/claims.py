"""A request of this process to own a group, until it is known what has become of it.

The answer may be lost: then the registry may name this process the owner, or do so later, as a
request that is late is executed all the same. So what the group would be gone on with is kept,
and the request is repeated under its name, which gets the same place again. The group's term
settles it: a request goes on from one term, and is refused for good when that is over.
"""

import secrets
from dataclasses import dataclass, field

from paramfleet_pserver.hosting.following import Following
from paramfleet_pserver.hosting.group import HostedGroup
from paramfleet_shared.discovery.plan import GroupPlan, ProcessId
from paramfleet_shared.discovery.session import JobSession

__all__ = ["Claim"]


@dataclass(kw_only=True, slots=True)
class Claim:
    """One request to own a group."""

    hosted: HostedGroup
    """What listens for the group, and is to be it; the group itself where its owner asks for
    a newer term."""

    endpoint: str
    """``host:port`` of that."""

    succeeds: int
    """The term that it goes on from."""

    source: Following | None = None
    """The copy that is gone on with; None where the owner asks."""

    fenced: int | None = None
    """After a handover the term under which the former owner has stopped for this process."""

    session: JobSession | None = None
    """The place that it was given, once that is known."""

    nonce: str = field(default_factory=lambda: secrets.token_hex(8))
    """Its name at the coordinator."""

    def is_refused(self, plan: GroupPlan, process: ProcessId) -> bool:
        """Return whether another process has the group, so that this one won't get it."""
        return plan.term > self.succeeds and plan.owner != process

    def may_ask(self, plan: GroupPlan, process: ProcessId) -> bool:
        """Return whether the plan gives the group to this process, or has done so."""
        if plan.term > self.succeeds:
            return plan.owner == process
        wanted = {plan.heir} if plan.heir is not None else {plan.owner, plan.target}
        return process in wanted

    async def close(self) -> None:
        """Let it go: nothing is gone on with."""
        if self.source is None:
            self.hosted.stays()
            return
        await self.hosted.server.close()
        if self.session is not None:
            await self.session.leave()
