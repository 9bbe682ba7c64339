"""How often, and when, processes are started again that died amid a job.

Plain decisions: ``now`` is an argument, in seconds.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from paramfleet_worker.core.events import ProcessName

__all__ = ["Restarts"]

FIRST_BACKOFF_S = 0.1
"""Between a death and the next start, at least."""

MAX_BACKOFF_S = 2.0
"""Between two starts of one process, at least, once it has died several times in a row. What
has lived for longer is no loop that has to be slowed down."""

NEW_COUNT_S = 20.0
"""A process that was killed after so long had started well: its restarts are counted anew."""

OWN_END_NEW_COUNT_S = 600.0
"""The same for one that ended by itself: its next process may come to the same error."""

ROLES = frozenset({"pserver", "coordinator", "redis"})
"""Those that go on from what a disk, the registry or the members have."""


@dataclass(slots=True)
class _Life:
    """What is known of one process's starts."""

    count: int = 0
    started_at: float | None = None
    """None while it is the first."""
    is_down: bool = False
    due: float | None = None
    """When it is to be started; None while that isn't decided."""


class Restarts:
    """The restarts of one launcher's processes.

    Args:
        most: How often a process is started again in a row; 0 for never.
        roles: Of which roles.
    """

    def __init__(self, most: int, roles: AbstractSet[str] = ROLES) -> None:
        self.most = most
        self._roles = roles
        self._lives: dict[ProcessName, _Life] = {}

    @property
    def down(self) -> frozenset[ProcessName]:
        """Return the processes that died and may be started again."""
        return frozenset(name for name, life in self._lives.items() if life.is_down)

    def began_again(self, name: ProcessName) -> bool:
        """Return whether a process isn't the first of its name."""
        life = self._lives.get(name)
        return life is not None and life.started_at is not None

    def concern(self, name: ProcessName) -> bool:
        """Return whether a process of this role is started again at all."""
        return self.most > 0 and name.role in self._roles

    def note_death(self, name: ProcessName, now: float, *, was_killed: bool) -> None:
        """Take in that a process died; ``grant`` or ``forget`` comes next.

        Args:
            name: It.
            now: The time.
            was_killed: Whether a signal ended it, and no error of its own.
        """
        life = self._lives.setdefault(name, _Life())
        well_after_s = NEW_COUNT_S if was_killed else OWN_END_NEW_COUNT_S
        if life.started_at is not None and now - life.started_at >= well_after_s:
            life.count = 0
        life.is_down, life.due = True, None

    def grant(self, name: ProcessName, now: float) -> bool:
        """Decide when a process that died is started; False if it was too often already."""
        life = self._lives[name]
        if life.count >= self.most:
            return False
        life.due = now + FIRST_BACKOFF_S
        if life.started_at is not None:
            between_s = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0**life.count)
            life.due = max(life.due, life.started_at + between_s)
        return True

    def forget(self, names: Iterable[ProcessName]) -> None:
        """Start these no more."""
        for name in list(names):
            self._lives[name].is_down, self._lives[name].due = False, None

    def next_due(self) -> float | None:
        """Return when the next process is to be started; None if none is."""
        return min(
            (life.due for life in self._lives.values() if life.due is not None), default=None
        )

    def take_due(self, now: float) -> list[tuple[ProcessName, int]]:
        """Return who is to be started now, and which restart that is."""
        taken = []
        for name in sorted(self._lives):
            life = self._lives[name]
            if life.due is not None and life.due <= now:
                life.count += 1
                life.started_at, life.is_down, life.due = now, False, None
                taken.append((name, life.count))
        return taken
