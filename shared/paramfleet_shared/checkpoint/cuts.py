"""What a checkpoint says of its moment, and the error of a push that has to wait for one.

A checkpoint is a consistent cut if every table on every pserver holds the same pushes of each
worker.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paramfleet_shared.errors import UnavailableError

__all__ = ["Cut", "FormerSaveError", "PushesHeldError", "SaveGoneError"]


class PushesHeldError(UnavailableError):
    """A push came while a checkpoint is written; nothing was changed; send it again."""

    code = "unavailable.pushes_held"
    rank: int
    waited_s: float
    sentence = (
        "a push of worker {rank} waited {waited_s:.1f} s for a checkpoint that is being "
        "written: send it again"
    )


class FormerSaveError(UnavailableError):
    """A save can't begin: one that was given up hasn't stopped writing its files as yet."""

    code = "unavailable.former_save"
    retryable = False
    name: str
    waited_s: float
    sentence = (
        "the save {name!r} has waited {waited_s:.1f} s for the files of an earlier save, which "
        "was cancelled: their disk or store is slow; save again later"
    )


class SaveGoneError(UnavailableError):
    """A pserver doesn't know a save that had begun: its process is another one."""

    code = "unavailable.save_gone"
    retryable = False
    name: str
    sentence = (
        "the save {name!r} does not exist any more: its pserver was restarted, or began "
        "another save"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """Whether a checkpoint is a consistent cut, and what that cost."""

    consistent: bool
    """Whether every table on every pserver holds the same pushes of each worker."""

    reason: str = ""
    """Why it isn't; empty if it is."""

    paused_s: float = 0.0
    """Seconds for which no push was applied while it was written."""

    def to_wire(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "consistent": self.consistent,
            "reason": self.reason,
            "paused_s": self.paused_s,
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "Cut":
        """Rebuild what ``to_wire`` returned.

        Raises:
            KeyError: if a value is missing.
            ValueError: if one is of another kind.
        """
        return cls(
            consistent=bool(wire["consistent"]),
            reason=str(wire["reason"]),
            paused_s=float(wire["paused_s"]),
        )
