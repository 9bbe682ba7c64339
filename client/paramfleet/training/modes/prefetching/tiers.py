"""Which tables have rows on disk, by pserver, as far as a worker knows.

A pserver is asked for rows of a table only while it said in its last answer that some are on
disk. Else it is asked at most each ``AGAIN_S``, without ids: that costs a message. Who asks
for rows explicitly doesn't rely on it.
"""

__all__ = ["AGAIN_S", "Tiers"]

AGAIN_S = 10.0
"""Seconds after which a pserver without rows on disk is asked whether it has some by now."""


class Tiers:
    """What the answers said.

    Args:
        num_servers: How many pservers there are.
    """

    def __init__(self, num_servers: int) -> None:
        self._num_servers = num_servers
        self._said: dict[str, list[tuple[bool, float]]] = {}

    def servers(self, table: str) -> list[int]:
        """Return which pservers have rows of a table on disk."""
        return [server for server, (has, _) in enumerate(self._of(table)) if has]

    def is_due(self, table: str, now: float) -> bool:
        """Return whether those without are to be asked again, or for the first time."""
        return any(not has and now >= again for has, again in self._of(table))

    def note(self, table: str, server: int, now: float, *, has: bool) -> None:
        """Note what a pserver said."""
        said = self._said.setdefault(table, self._of(table))
        said[server] = has, now + AGAIN_S

    def _of(self, table: str) -> list[tuple[bool, float]]:
        never = float("-inf")
        return self._said.get(table) or [(False, never)] * self._num_servers
