"""Whom a pserver serves: certificates by operation, and who may act for a worker.

For a worker acts who has an incarnation that the coordinator gave out, and nobody else.
What is known is compared in memory. The registry is read once when a newer incarnation of a
worker shows up than is known here.
"""

from collections.abc import Awaitable, Callable

from paramfleet_pserver.requests.fields import Fields
from paramfleet_shared.discovery.errors import UnissuedIncarnationError
from paramfleet_shared.net.rights import Rights
from paramfleet_shared.net.rpc.server import Request
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.system.clock import Clock

__all__ = ["RIGHTS", "IssuedIncarnations"]

RIGHTS: Rights = {
    **dict.fromkeys(
        (
            "declare", "pull", "stage", "push", "step", "exchange", "survey", "prefetch",
            "remove", "discount", "write", "void",
            "assign", "leave", "join", "begin", "settle", "progress", "wait_turn", "hold",
            "save", "saved", "load", "total", "norm", "await_step", "answer", "states",
            "read_pass", "prepare_pass", "commit_pass", "abort_pass", "pass_state",
        ),
        frozenset({"worker"}),
    ),
    **dict.fromkeys(
        ("follow", "follow_snapshot", "follow_log", "fence", "unfence", "unfollow"),
        frozenset({"pserver"}),
    ),
    **dict.fromkeys(
        ("feed_begin", "feed_rows", "feed_keep", "feed_changes", "feed_end"),
        frozenset({"serving"}),
    ),
    "status": frozenset({"coordinator", "pserver", "worker"}),
}  # fmt: skip
"""A pserver's operations, and the roles whose certificates may ask for them."""

ACTING = frozenset(
    {
        "declare",
        "join",
        "settle",
        "begin",
        "stage",
        "push",
        "step",
        "exchange",
        "void",
        "survey",
        "prefetch",
        "remove",
        "discount",
        "write",
        "assign",
        "leave",
        "wait_turn",
        "hold",
        "save",
        "saved",
        "load",
        "answer",
        "total",
        "norm",
        "await_step",
        "read_pass",
        "prepare_pass",
        "commit_pass",
        "abort_pass",
        "progress",
    }
)
"""Operations that a worker acts by, under its incarnation."""

_MAY_ACT = frozenset({"pull"})
"""Those of which some act: they say their incarnation."""

_POLL_FRACTION = 0.25
"""Part of the patience between two looks at the registry."""


class IssuedIncarnations:
    """The newest incarnation of each worker that was given out, as far as is known.

    Belongs to one event loop.

    Args:
        read: Returns a rank's newest incarnation in the registry; 0 for none.
        clock: For the patience.
        patience_s: Seconds to wait for the registry to know one. After Redis came back empty
            a worker's next heartbeat writes it again.
    """

    def __init__(
        self, read: Callable[[int], Awaitable[int]], *, clock: Clock, patience_s: float
    ) -> None:
        self._read = read
        self._clock = clock
        self._patience_s = patience_s
        self._newest: dict[int, int] = {}

    def lets(self, operation: str, request: Request) -> bool:
        """Return whether a request may be served at once; nothing is read for it."""
        fields = request.message.fields
        says_so = operation in _MAY_ACT and "incarnation" in fields
        if operation not in ACTING and not says_so:
            return True
        rank, incarnation = fields.get("rank"), fields.get("incarnation")
        if type(rank) is not int or type(incarnation) is not int:
            return False
        return self._holds(rank, incarnation)

    async def admitted(
        self, operation: str, request: Request, handler: Callable[[Request], Awaitable[Message]]
    ) -> Message:
        """Serve a request once its incarnation is known; raises as ``check``."""
        fields = Fields(request.message.fields, where=operation)
        await self.check(fields.integer("rank"), fields.integer("incarnation"))
        return await handler(request)

    async def check(self, rank: int, incarnation: int) -> None:
        """Return when an incarnation is known to be given out.

        Raises:
            UnissuedIncarnationError: if nobody gave it out.
            NoRedisError: if the registry stays away.
        """
        deadline = self._clock.monotonic() + self._patience_s
        while not self._holds(rank, incarnation):
            asked = self._clock.monotonic()
            newest = await self._read(rank)
            # A Redis that was away may be empty: workers need time to be in it again.
            deadline += self._clock.monotonic() - asked
            if newest:
                self._newest[rank] = max(newest, self._newest.get(rank, 0))
            if 0 < incarnation <= newest:
                return
            if incarnation < 1 or self._clock.monotonic() >= deadline:
                raise UnissuedIncarnationError(
                    role="worker", index=rank, incarnation=incarnation, newest=newest
                )
            await self._clock.sleep(self._patience_s * _POLL_FRACTION)

    def _holds(self, rank: int, incarnation: int) -> bool:
        return 0 < incarnation <= self._newest.get(rank, 0)
