"""How many bytes of bodies one server holds for all its connections, and for each peer.

Only bodies under way count: those that come until they are whole, and answers until they have
left. They move, or are cut off, without anybody else's doing. What a handler was given doesn't
count: it may wait for another peer's request, which must find memory.
"""

__all__ = ["BodyBudget", "BodyShare"]


class BodyBudget:
    """The bytes of one server.

    Args:
        limit_bytes: Most bytes of bodies at a time.
    """

    __slots__ = ("limit_bytes", "num_held", "num_refused")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.num_held = 0
        self.num_refused = 0
        """Requests that have found no memory until now."""

    def share(self, limit_bytes: int | None = None) -> "BodyShare":
        """Return a part for one peer; with None it may take all."""
        return BodyShare(self, self.limit_bytes if limit_bytes is None else limit_bytes)


class BodyShare:
    """What all connections of one peer hold."""

    __slots__ = ("_budget", "limit_bytes", "num_held")

    def __init__(self, budget: BodyBudget, limit_bytes: int) -> None:
        self._budget = budget
        self.limit_bytes = limit_bytes
        self.num_held = 0

    def take(self, num_more: int, held: int = 0) -> bool:
        """Let a body hold more memory, and return True, if there is that; one alone always may.

        Args:
            num_more: Bytes that it needs.
            held: Those that it holds already.
        """
        budget = self._budget
        in_all, here = budget.num_held + num_more, self.num_held + num_more
        if (in_all <= budget.limit_bytes or budget.num_held == held) and (
            here <= self.limit_bytes or self.num_held == held
        ):
            budget.num_held, self.num_held = in_all, here
            return True
        budget.num_refused += 1
        return False

    def hold(self, num_more: int) -> None:
        """Take note of bytes held, or given back if below 0."""
        self._budget.num_held += num_more
        self.num_held += num_more
