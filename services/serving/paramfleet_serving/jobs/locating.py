"""Where the pservers of a job are now, as the registry says."""

from typing import NamedTuple

from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.discovery.redis.store import store_of
from paramfleet_shared.discovery.registry import Registry
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.system.clock import Clock

__all__ = ["JobState", "Locator"]

REDIS_TIMEOUT_S = 5.0


class JobState(NamedTuple):
    """The latest run of a job."""

    run: str
    """What tells it from other runs, also of launches with other registries; empty: there was
    none."""
    placement: Placement | None
    """None until every pserver serves."""
    has_ended: bool
    """Whether it has finished or failed."""


class Locator:
    """Reads the registry of one job. Used from one event loop.

    Args:
        settings: Which job, and where its registry is.
        clock: Time.
    """

    def __init__(self, settings: JobSettings, clock: Clock) -> None:
        self._store = store_of(settings, clock=clock, timeout_s=REDIS_TIMEOUT_S)
        self._registry = Registry(self._store, job=settings.job)

    async def look(self) -> JobState:
        """Return how the latest run is.

        Raises:
            NoRedisError: if the registry doesn't answer.
        """
        epoch, record = await self._registry.read_latest()
        if record is None:
            return JobState("", None, has_ended=False)
        placement = None if record.placement is None else dict(record.placement)
        return JobState(
            f"{record.launch} {record.run_id} {epoch}",
            None if placement is None else Placement.from_wire(placement),
            has_ended=record.state in {"finished", "failed"},
        )

    async def close(self) -> None:
        """Close the connection."""
        await self._store.close()
