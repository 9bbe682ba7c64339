"""How many requests a server answered, and how long each kind took.

The time of a request includes what it waits for: its turn with an owner, and that of a pull in
sync the other workers; that of a step doesn't. What waits for nobody is the server's own.
"""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

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

    def counted(
        self,
        operation: str,
        began: float,
        answer: Awaitable[T],
        *,
        waited_s: Callable[[T], float] = lambda _: 0.0,
    ) -> Awaitable[T]:
        """Return what becomes the answer, and counts its request then.

        Args:
            operation: Its name.
            began: When it came.
            answer: What becomes of it.
            waited_s: Tells by the answer which seconds aren't to count.
        """
        return _Counted(self, operation, began, answer, waited_s)

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


class _Counted(Generic[T]):
    """An answer whose request is counted when it is there."""

    def __init__(
        self,
        times: ServiceTimes,
        operation: str,
        began: float,
        answer: Awaitable[T],
        waited_s: Callable[[T], float],
    ) -> None:
        self._times = times
        self._operation = operation
        self._began = began
        self._answer = answer
        self._waited_s = waited_s

    def __await__(self) -> Generator[Any, Any, T]:
        try:
            found = yield from self._answer.__await__()
        except BaseException:
            self._times.count(self._operation, self._began)
            raise
        waited_s = self._waited_s(found)
        self._times.count(self._operation, self._began, waited_s=waited_s)
        return found

    def close(self) -> None:
        """End work that nobody will wait for, perhaps before its first step."""
        close = getattr(self._answer, "close", None)
        if close is not None:
            close()
