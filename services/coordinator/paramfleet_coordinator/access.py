"""Who may change a job, and the record of who did.

Handlers are marked with ``@requires``. One that changes something says so with ``audit``,
before it answers: a line in the log, and an entry in the application's ``AuditLog``.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from paramfleet_shared.access import identity_of, requires

__all__ = ["AUDIT_LOG", "AuditEntry", "AuditLog", "audit", "requires"]

log = logging.getLogger(__name__)

MAX_ENTRIES = 1000
"""Entries that are kept; the oldest goes first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEntry:
    """One change."""

    at: str
    """When: ISO 8601, UTC."""

    who: str
    """The name of the token or certificate; ``anonymous`` where nobody must say."""

    peer: str
    """The caller's address."""

    action: str
    before: Any
    """What was, in plain values."""

    after: Any
    """What is now, in plain values."""

    def to_plain(self) -> dict[str, Any]:
        """Return the fields in plain values."""
        return asdict(self)


class AuditLog:
    """The latest changes, oldest first.

    Args:
        sink: Gets every new entry, for those who keep them elsewhere.
        now: The time of an entry.
    """

    def __init__(
        self,
        *,
        sink: Callable[[AuditEntry], None] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._entries: deque[AuditEntry] = deque(maxlen=MAX_ENTRIES)
        self._sink = sink
        self._now = now

    @property
    def entries(self) -> tuple[AuditEntry, ...]:
        """Return what is kept."""
        return tuple(self._entries)

    def restore(self, entries: list[AuditEntry]) -> None:
        """Put entries of a former process before those of this one."""
        room = MAX_ENTRIES - len(self._entries)
        if room:
            self._entries.extendleft(reversed(entries[-room:]))

    def record(self, *, who: str, peer: str, action: str, before: Any, after: Any) -> None:
        """Keep a change, and log it."""
        at = self._now().isoformat(timespec="milliseconds")
        entry = AuditEntry(at=at, who=who, peer=peer, action=action, before=before, after=after)
        self._entries.append(entry)
        facts = {"who": who, "peer": peer, "action": action, "before": before, "after": after}
        log.info("audit", extra=facts)
        if self._sink is not None:
            self._sink(entry)


AUDIT_LOG = web.AppKey("paramfleet_audit_log", AuditLog)


def audit(request: web.Request, action: str, before: Any, after: Any) -> None:
    """Record a change that a request made.

    Args:
        request: Whose application has an ``AUDIT_LOG``.
        action: What was done, as ``pause``.
        before: What was, in plain values.
        after: What is now, in plain values.
    """
    request.config_dict[AUDIT_LOG].record(
        who=identity_of(request).name,
        peer=request.remote or "?",
        action=action,
        before=before,
        after=after,
    )
