"""When a change may be applied: all that can refuse it comes before its first effect."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from paramfleet_pserver.requests.checked import ExchangePart, PullRequest, PushPart
from paramfleet_pserver.requests.row_requests import WriteRequest
from paramfleet_pserver.tables.capacity import Claims, Wanted, claim_at_once, claim_counted
from paramfleet_pserver.tables.columns import PassPart
from paramfleet_pserver.tables.owners import Owners
from paramfleet_pserver.tables.parts import SparsePart
from paramfleet_pserver.tables.table import SparseTable
from paramfleet_pserver.waiting.holding import Holding
from paramfleet_shared.net.wire.identity import ChangeIdentity

__all__ = ["Hold", "admit", "claim", "creating"]

_Part = ExchangePart | PushPart | PassPart | WriteRequest
"""Of a change that may create rows."""


class Hold(NamedTuple):
    """What may keep a change back for a checkpoint."""

    holding: Holding
    identity: ChangeIdentity
    """The change's."""
    deadline: float | None
    """In the clock's time."""


def creating(pull: PullRequest) -> list[tuple[SparseTable, SparsePart]]:
    """Return the tables in which a pull may create rows, with the ids that become rows."""
    return [
        (part.table, part.rows)
        for part in pull.parts
        if part.create and isinstance(part.table, SparseTable) and part.rows is not None
    ]


def _wanted_of(parts: Iterable[_Part]) -> list[Wanted]:
    """Return where the parts of a change may create rows."""
    return [
        part.table.wanted_by(part.content)
        for part in parts
        if isinstance(part.table, SparseTable) and isinstance(part.content, SparsePart)
    ]


async def claim(wanted: Sequence[Wanted], owners: Owners) -> Claims:
    """Claim room for ids, as if each were new if that is possible.

    Raises:
        CapacityError: if a block has no room for those that are new; nothing is claimed.
        TableMemoryError: if there is no memory for them; nothing is claimed.
    """
    claims = claim_at_once(wanted)
    return await claim_counted(wanted, owners) if claims is None else claims


async def admit(
    judge: Callable[[], Sequence[_Part]],
    owners: Owners,
    hold: Hold | None = None,
) -> Claims:
    """Return, when a change may be applied, the room that its rows need.

    The caller applies it without an ``await``: what ``judge`` found then holds still.

    Args:
        judge: Returns the parts that are to be applied, or raises why none may be.
        owners: Who counts new rows where room is short.
        hold: What may keep the change back.

    Raises:
        CapacityError: if a block has no room for the new rows; nothing is changed.
        TableMemoryError: if there is no memory for them; nothing is changed.
        PushesHeldError: if a checkpoint keeps the change back for too long.
    """
    claims: Claims | None = None
    try:
        while True:
            if hold is not None and hold.holding.is_held:
                await hold.holding.pass_through(hold.identity, deadline=hold.deadline)
            parts = judge()
            if claims is None:
                claims = claim_at_once(_wanted_of(parts))
            if claims is not None:
                return claims
            claims = await claim_counted(_wanted_of(parts), owners)
    except BaseException:
        if claims is not None:
            claims.release()
        raise
