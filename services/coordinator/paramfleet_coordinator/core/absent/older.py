"""Pservers that come back with older data than they had: their folder was put back to a copy.

Workers that live notice it, because changes are missing that were reported durable to them. Who
is started again knows nothing of those.

Nothing here waits or reads a clock.
"""

from dataclasses import dataclass

from paramfleet_shared.discovery.records import Failure, Snapshot

__all__ = ["KnownData"]


@dataclass(slots=True)
class _Data:
    """What one pserver has on its disk."""

    incarnation: int = 0
    """Of the process that has it."""
    before: int = 0
    """How far it was known to be there when that process came."""
    position: int = 0
    """How far it is known to be there."""


class KnownData:
    """How far the data of each pserver of a job is known to be on its disk."""

    def __init__(self) -> None:
        self._all: dict[int, _Data] = {}

    def look(self, snapshot: Snapshot) -> Failure | None:
        """Return which pserver began with less than had been on its disk; None if none did.

        Args:
            snapshot: Of what members say.
        """
        for key, said in snapshot.facts.items():
            role, index = key
            member = snapshot.members.get(key)
            if role != "pserver" or member is None:
                continue
            match said.get("log"):
                case {"began_at": int(began_at), "durable_position": int(durable)}:
                    data = self._all.setdefault(index, _Data())
                    if member.incarnation > data.incarnation:
                        data.incarnation, data.before = member.incarnation, data.position
                    if began_at < data.before:
                        words = _words(began_at, data.before)
                        return Failure(role=role, index=index, reason=words)
                    data.position = max(durable, data.position)
                case _:
                    pass  # it has no log, or doesn't serve as yet
        return None


def _words(began_at: int, known: int) -> str:
    return (
        f"its data folder is an older copy: it has the changes up to number {began_at}, and "
        f"those up to {known} had been on the disk. Start again with the newest folder, or "
        "from a checkpoint (--resume)"
    )
