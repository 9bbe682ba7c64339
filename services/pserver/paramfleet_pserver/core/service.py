"""How many requests a server answered, and how long each kind took.

The time of a request includes what it waits for: its turn with an owner, and that of a pull in
sync the other workers; that of a step doesn't. What waits for nobody is the server's own.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["ServiceTimes"]

T = TypeVar("T")


class ServiceTimes:
    """Counts by operation. Used from one event loop.

    Args:
        now: Returns the time in seconds.
        within: Counts each request, too.
    """

    def __init__(
        self, now: Callable[[], float], *, within: "ServiceTimes | None" = None
    ) -> None:
        self.now = now
        self._within = within
        self._began = now()
        self._requests: dict[str, int] = {}
        self._seconds: dict[str, float] = {}

    def count(self, operation: str, began: float, *, waited_s: float = 0.0) -> None:
        """Count a request that is answered now.

        Args:
            operation: Its name.
            began: When it came.
            waited_s: Seconds that aren't to count.
        """
        self._requests[operation] = self._requests.get(operation, 0) + 1
        took = max(0.0, self.now() - began - waited_s)
        self._seconds[operation] = self._seconds.get(operation, 0.0) + took
        if self._within is not None:
            self._within.count(operation, began, waited_s=waited_s)

    async def counted(
        self,
        operation: str,
        began: float,
        answer: Awaitable[T],
        *,
        waited_s: Callable[[T], float] = lambda _: 0.0,
    ) -> T:
        """Return the answer, and count its request then.

        Args:
            operation: Its name.
            began: When it came.
            answer: What becomes of it.
            waited_s: Tells by the answer which seconds aren't to count.
        """
        try:
            found = await answer
        except BaseException:
            self.count(operation, began)
            raise
        self.count(operation, began, waited_s=waited_s(found))
        return found

    def measure(self, operation: str, which: str) -> float:
        """Return ``requests`` or ``request_seconds`` of an operation."""
        counts = self._requests if which == "requests" else self._seconds
        return float(counts.get(operation, 0.0))

    @property
    def seconds(self) -> float:
        """Return for how long it has counted."""
        return self.now() - self._began

    def facts(self) -> dict[str, list[float]]:
        """Return requests and seconds by operation."""
        return {
            operation: [count, round(self._seconds[operation], 5)]
            for operation, count in self._requests.items()
        }
