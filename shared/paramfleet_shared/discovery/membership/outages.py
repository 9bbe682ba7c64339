"""How long a member goes on without Redis or without a coordinator."""

import logging

from paramfleet_shared.discovery.errors import NoRedisError
from paramfleet_shared.discovery.membership.life import JobLife
from paramfleet_shared.errors import JobFailedError
from paramfleet_shared.system.clock import Clock

__all__ = ["Outages"]

log = logging.getLogger(__name__)


class Outages:
    """Ends a member's part in its job when an outage lasts too long.

    Args:
        life: What ends then.
        clock: Measures outages.
        grace_s: Seconds that one may last.
    """

    def __init__(self, life: JobLife, *, clock: Clock, grace_s: float) -> None:
        self._life = life
        self._clock = clock
        self._grace_s = grace_s
        self._redis_at = self._coordinator_at = clock.monotonic()
        self._misses_redis = False

    def note_silence(self, error: NoRedisError) -> None:
        """Note that Redis didn't answer a heartbeat."""
        waited_s = self._clock.monotonic() - self._redis_at
        if not self._misses_redis:
            log.warning("job.redis_lost", extra={"reason": str(error)})
        self._misses_redis = True
        if waited_s >= self._grace_s:
            self._life.end_badly(NoRedisError(**{**error.facts, "waited_s": waited_s}))

    def note_answer(self, *, asked_at: float, has_coordinator: bool) -> bool:
        """Note that Redis answered a heartbeat of ``asked_at``, and whom it knew.

        Returns:
            True if the coordinator has stayed away for too long: the job has failed.
        """
        self._redis_at = asked_at
        if self._misses_redis:
            log.info("job.redis_found")
        self._misses_redis = False
        if has_coordinator:
            self._coordinator_at = asked_at
        waited_s = self._clock.monotonic() - self._coordinator_at
        if waited_s >= self._grace_s:
            reason = f"gone for {waited_s:.0f} s, and it was not started again"
            self._life.end_badly(JobFailedError(role="coordinator", index=0, reason=reason))
            return True
        return False
