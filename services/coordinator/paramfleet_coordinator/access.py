"""Who may change a job, and the record of who did.

Members ask by the operations of ``RIGHTS``, with a certificate of a role that is named there.
People and programs ask by HTTP, whose handlers are marked with ``@requires``. One that changes
something says so with ``audit``, before it answers: a line in the log, and an entry in the
application's ``AuditLog``, which the job's registry keeps.
"""

import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from paramfleet_shared.discovery.errors import NoRedisError
from paramfleet_shared.discovery.job_registry import AUDIT_ENTRIES
from paramfleet_shared.discovery.records import PROCESS, Member
from paramfleet_shared.net.access import identity_of, requires
from paramfleet_shared.net.rights import OperationRefusedError, Rights
from paramfleet_shared.net.rpc.server import Request

__all__ = [
    "AUDIT_LOG",
    "RIGHTS",
    "AuditEntry",
    "AuditLog",
    "audit",
    "require_own_role",
    "requires",
]

log = logging.getLogger(__name__)

_PSERVERS = frozenset({"pserver"})

RIGHTS: Rights = {
    "join": frozenset({"pserver", "worker"}),
    "barrier": frozenset({"worker"}),
    "plan": _PSERVERS,
    "set_eligible": _PSERVERS,
    "cancel_move": _PSERVERS,
    "drain_process": _PSERVERS,
}
"""The coordinator's operations, and the roles whose certificates may ask for them."""

_CERTIFICATES = {PROCESS: "pserver"}
"""By role in a job: that of the certificate, where it is another."""


def require_own_role(request: Request, newcomer: Member) -> None:
    """Pass if a certificate's holder may join as what it says; without certificates all may.

    Raises:
        OperationRefusedError: if it may not.
    """
    needed = _CERTIFICATES.get(newcomer.role, newcomer.role)
    if request.role and request.role != needed:
        raise OperationRefusedError(
            server="coordinator",
            operation=f"join as {newcomer.role}",
            role=request.role,
            allowed=needed,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEntry:
    """One change."""

    number: int
    """Counts the changes of a job, from 1."""

    at: str
    """When: ISO 8601, UTC."""

    who: str
    """The name of the token or certificate."""

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


Keep = Callable[[int, Sequence[str]], Awaitable[bool]]
"""Keeps entries, as JSON, that follow the one of this number; False if that one is lost."""


class AuditLog:
    """The latest changes, oldest first. Used from one event loop.

    Args:
        keep: Where entries outlast this process; without it they don't.
        now: The time of an entry.
    """

    def __init__(
        self,
        *,
        keep: Keep | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._entries: deque[AuditEntry] = deque(maxlen=AUDIT_ENTRIES)
        self._keep = keep
        self._num_kept = 0
        self._now = now

    @property
    def entries(self) -> tuple[AuditEntry, ...]:
        """Return what is kept."""
        return tuple(self._entries)

    def restore(self, kept: Sequence[str | bytes]) -> None:
        """Begin with what former processes kept."""
        assert not self._entries, "before the first of this process"
        self._entries.extend(AuditEntry(**json.loads(text)) for text in kept)
        self._num_kept = self._entries[-1].number if self._entries else 0

    async def flush(self) -> None:
        """Keep what isn't kept yet; what fails is made up for by the next call.

        Raises:
            NoRedisError: if the registry is away.
        """
        if self._keep is None or not self._entries:
            return
        last = self._entries[-1].number
        if last == self._num_kept:
            return
        texts = {entry.number: json.dumps(entry.to_plain()) for entry in self._entries}
        new = [text for number, text in texts.items() if number > self._num_kept]
        is_kept = await self._keep(self._num_kept, new)
        if not is_kept:  # Redis was restarted empty, or with old data
            await self._keep(0, [*texts.values()])
        self._num_kept = last

    def record(self, *, who: str, peer: str, action: str, before: Any, after: Any) -> None:
        """Keep a change, and log it."""
        at = self._now().isoformat(timespec="milliseconds")
        number = self._entries[-1].number + 1 if self._entries else 1
        facts = {"who": who, "peer": peer, "action": action, "before": before, "after": after}
        self._entries.append(AuditEntry(number=number, at=at, **facts))
        log.info("audit", extra=facts)


AUDIT_LOG = web.AppKey("paramfleet_audit_log", AuditLog)


async def audit(request: web.Request, action: str, before: Any, after: Any) -> None:
    """Record a change that a request made.

    While the registry is away the entry waits for it; the change has been made.

    Args:
        request: Whose application has an ``AUDIT_LOG``.
        action: What was done, as ``pause``.
        before: What was, in plain values.
        after: What is now, in plain values.
    """
    audit_log = request.config_dict[AUDIT_LOG]
    audit_log.record(
        who=identity_of(request).name,
        peer=request.remote or "?",
        action=action,
        before=before,
        after=after,
    )
    try:
        await audit_log.flush()
    except NoRedisError as error:
        log.warning("audit.waits", extra={"action": action, "reason": str(error)})
