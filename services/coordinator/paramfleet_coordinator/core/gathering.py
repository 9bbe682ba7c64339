"""How many workers and pservers a job has, where that wasn't said: as many as come.

A process that asks to join waits until no other of its role has joined for a while. Then
those that wait are the job's, and each gets its index. A worker waits for the number of
pservers too, because that is part of the answer to its join.

Nothing here waits, logs or reads a clock: ``now`` is an argument, in seconds.
"""

from dataclasses import dataclass, replace

from paramfleet_shared.discovery.records import JobSizes

__all__ = ["AWAY_S", "Gathering"]

AWAY_S = 3.0
"""A newcomer counts for so long between two of its requests; a dead one makes no other."""


@dataclass(slots=True)
class _Newcomer:
    asked_at: float
    """When its last request came."""

    is_here: bool
    """Whether a request of it waits."""


class Gathering:
    """Counts who has come of each role.

    Args:
        sizes: Of the job; 0 workers or pservers are as many as come.
        settle_s: Seconds without another newcomer of a role after which it is complete.
    """

    def __init__(self, sizes: JobSizes, *, settle_s: float) -> None:
        self.sizes = sizes
        self._settle_s = settle_s
        self._newcomers: dict[str, dict[str, _Newcomer]] = {"worker": {}, "pserver": {}}
        self._last_came_at: dict[str, float] = {}

    def arrive(self, role: str, nonce: str, *, now: float) -> None:
        """Note that a newcomer asks; it may have asked before."""
        newcomers = self._newcomers.get(role)
        if newcomers is None or self.knows_enough(role):
            return
        if nonce not in newcomers:
            self._last_came_at[role] = now
        newcomers[nonce] = _Newcomer(asked_at=now, is_here=True)

    def go(self, role: str, nonce: str, *, now: float) -> None:
        """Note that a newcomer's request ended without an answer; it may ask again."""
        newcomer = self._newcomers.get(role, {}).get(nonce)
        if newcomer is not None:
            newcomer.asked_at, newcomer.is_here = now, False

    def knows_enough(self, role: str) -> bool:
        """Return whether the job's sizes are known to a newcomer of this role."""
        if role == "worker":
            return self.sizes.worker_num > 0 and self.sizes.server_num > 0
        return self.sizes.server_num > 0 or role not in self._newcomers

    def waiting(self, role: str, *, now: float) -> int:
        """Return how many of a role have come."""
        newcomers = self._newcomers[role].values()
        return sum(each.is_here or now - each.asked_at < AWAY_S for each in newcomers)

    def open_roles(self, *, now: float) -> dict[str, int]:
        """Return how many have come of each role whose number isn't decided."""
        sizes = {"worker": self.sizes.worker_num, "pserver": self.sizes.server_num}
        return {role: self.waiting(role, now=now) for role, num in sizes.items() if not num}

    def settled(self, *, now: float) -> JobSizes:
        """Return the job's sizes with what can be decided now; ``sizes`` stays as it is.

        They hold once ``sizes`` has been set to them.
        """
        sizes = self.sizes
        if not sizes.server_num and self._is_complete("pserver", now):
            num = self.waiting("pserver", now=now)
            sizes = replace(sizes, server_num=num, num_shards=max(num, sizes.num_shards))
        if not sizes.worker_num and self._is_complete("worker", now):
            sizes = replace(sizes, worker_num=self.waiting("worker", now=now))
        return sizes

    def _is_complete(self, role: str, now: float) -> bool:
        came_at = self._last_came_at.get(role)
        quiet = came_at is not None and now - came_at >= self._settle_s
        return quiet and self.waiting(role, now=now) > 0
