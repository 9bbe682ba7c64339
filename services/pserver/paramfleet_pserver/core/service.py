"""How many requests a server answered, and how long each kind took.

The time of a request includes what it waits for: its turn with an owner, and in sync the
other workers. That of a pull or push which waits for nobody is the server's own.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["ServiceTimes"]

T = TypeVar("T")


class ServiceTimes:
    """Counts by operation. Used from one event loop.

    Args:
        now: Returns the time in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._requests: dict[str, int] = {}
        self._seconds: dict[str, float] = {}

    def count(self, operation: str, began: float) -> None:
        """Count a request that is answered now."""
        self._requests[operation] = self._requests.get(operation, 0) + 1
        took = self.now() - began
        self._seconds[operation] = self._seconds.get(operation, 0.0) + took

    async def counted(self, operation: str, began: float, answer: Awaitable[T]) -> T:
        """Return the answer, and count its request then."""
        try:
            return await answer
        finally:
            self.count(operation, began)

    def measure(self, operation: str, which: str) -> float:
        """Return ``requests`` or ``request_seconds`` of an operation."""
        counts = self._requests if which == "requests" else self._seconds
        return float(counts.get(operation, 0.0))

    def facts(self) -> dict[str, list[float]]:
        """Return requests and seconds by operation."""
        return {
            operation: [count, round(self._seconds[operation], 5)]
            for operation, count in self._requests.items()
        }
