"""The copies of one group that this process holds: which it keeps, and which is gone on with.

There may be two. The registry names copies by their process, so a name may be that of the copy
of the present owner, or of one that followed an owner before: the plan says which (``eligible``
and ``inherited``), and since which term the owner had the group that ``inherited`` followed.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, TypeVar

from paramfleet_pserver.hosting.following import Following
from paramfleet_pserver.hosting.group import GroupParts
from paramfleet_shared.discovery.plan import GroupPlan, ProcessId
from paramfleet_shared.discovery.session import JobSession

if TYPE_CHECKING:
    from paramfleet_pserver.following.messages import Purpose

__all__ = ["HeldCopies", "inherited_copy"]

LOOK_S = 0.05
"""Seconds from a copy that can't follow any more to the next one."""


class _OfTerm(Protocol):
    @property
    def term(self) -> int:
        """Return whose copy it is."""
        ...


C = TypeVar("C", bound=_OfTerm)


def inherited_copy(copies: Iterable[C | None], since: int) -> C | None:
    """Return the copy that the registry names of an owner before; None if it isn't here.

    A copy of an older term may lack what was reported durable since, so it is none of those.
    One of a newer term has all that the right one has: its owner had it.

    Args:
        copies: Of this process.
        since: The first term of that owner.
    """
    found = [each for each in copies if each is not None and each.term >= since]
    return min(found, key=lambda each: each.term, default=None)


class HeldCopies:
    """The copies of a group in this process. Used from one event loop, by one task.

    Args:
        parts: Of the process.
        session: The process's.
        group: Which.
    """

    def __init__(self, parts: GroupParts, session: JobSession, group: int) -> None:
        self._parts = parts
        self._session = session
        self._group = group
        self.following: Following | None = None
        """The newest."""
        self._kept: Following | None = None
        """A copy of an older term, which may be gone on with until there is a newer one."""

    @property
    def _me(self) -> ProcessId:
        return self._session.planning.process

    def named(self, plan: GroupPlan) -> Following | None:
        """Return the copy that the registry names: of this owner, or of the one before."""
        if self._me.text in plan.eligible:
            return self.following
        return inherited_copy((self._kept, self.following), plan.inherited_term)

    async def follow(self, plan: GroupPlan) -> None:
        """Follow the group's owner, as a replica or to get the group."""
        name = self._me.text
        purpose: Purpose = "replica" if plan.follower == self._me else "move"
        now = self.following
        if now is not None and not plan.since_term <= now.term <= plan.term:
            await self._retire(plan)
        elif now is not None and now.purpose != purpose and name not in plan.heirs:
            await self._close_following()
        await self._let_kept_go(plan)
        now = self.following
        if now is not None and now.failed is not None and name not in plan.heirs:
            await self._close_following()
            await self._parts.clock.sleep(LOOK_S)
        placement = self._session.placement
        is_known = placement is not None and placement.term_of(self._group) == plan.term
        if self.following is not None or placement is None or not is_known:
            return
        self.following = Following(
            self._parts,
            self._session,
            group=self._group,
            term=plan.term,
            endpoint=placement.endpoints[self._group],
            purpose=purpose,
        )

    async def let_go(self, plan: GroupPlan) -> None:
        """Let copies go that nobody may need."""
        if self._me.text not in plan.heirs:
            await self._close_following()
        await self._let_kept_go(plan)

    async def close(self) -> None:
        """Let all go: there is no need of any."""
        await self._close_following()
        kept, self._kept = self._kept, None
        if kept is not None:
            await kept.close()

    async def _retire(self, plan: GroupPlan) -> None:
        """Keep the newest copy, whose owner has the group no more, if the registry names it."""
        now, kept = self.following, self._kept
        is_inherited = self._me.text in plan.inherited
        self.following = None
        if is_inherited and now is inherited_copy((kept, now), plan.inherited_term):
            self._kept, now = now, kept
        if now is not None:
            await now.close()

    async def _close_following(self) -> None:
        now, self.following = self.following, None
        if now is not None:
            await now.close()

    async def _let_kept_go(self, plan: GroupPlan) -> None:
        if self._kept is not None and self._me.text not in plan.inherited:
            kept, self._kept = self._kept, None
            await kept.close()
