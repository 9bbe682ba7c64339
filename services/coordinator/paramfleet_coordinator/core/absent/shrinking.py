"""sync goes on without a worker that died: from which step on is the same on all pservers.

Pservers apply a step only when each part of it is known to be with all of them. Of a worker
that is gone they take nothing any more, and say before which step all of its parts are. The
greatest of these is where it ends: what comes before is with every pserver, and counts; what
comes after counts nowhere.

Nothing here waits or reads a clock.
"""

from collections.abc import Mapping
from typing import Any

from paramfleet_shared.discovery.records import Lost, MemberKey

__all__ = ["end_of", "shrinks"]


def shrinks(facts: Mapping[MemberKey, Mapping[str, Any]]) -> bool:
    """Return whether the workers' strategy says so, as the pservers know it."""
    said = [
        each.get("on_worker_loss") for (role, _), each in facts.items() if role == "pserver"
    ]
    return "shrink" in said


def end_of(
    lost: Lost, facts: Mapping[MemberKey, Mapping[str, Any]], *, server_num: int
) -> int | None:
    """Return from which step on a lost worker takes no part; None before all have said it."""
    ends: list[int] = []
    for index in range(server_num):
        stopped = facts.get(("pserver", index), {}).get("stopped", [])
        own = [
            step
            for rank, incarnation, step in stopped
            if (rank, incarnation) == (lost.index, lost.incarnation)
        ]
        if not own:
            return None
        ends += own
    return max(ends, default=None)
