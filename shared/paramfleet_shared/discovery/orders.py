"""What an operator wants of a running job, as one value that every member receives.

It describes a state, not an action: a member that missed a version applies the next.
The coordinator writes it with its decisions, and each heartbeat returns it.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["CheckpointOrder", "Orders"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointOrder:
    """A checkpoint that worker 0 is to have written."""

    number: int
    """Counts the checkpoints asked for, from 1."""

    dirname: str
    """Its folder; a relative one is below worker 0's working folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Orders:
    """How a job is to continue."""

    version: int = 0
    """Counts the changes; 0 is a job without any command."""

    paused: bool = False
    """Whether workers take no further step."""

    ends: bool = False
    """Whether workers finish their training now."""

    drained: tuple[int, ...] = ()
    """Ranks of workers that leave."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """``lr``, ``k_steps`` and ``max_staleness``, those that were changed."""

    checkpoint: CheckpointOrder | None = None
    """The latest that was asked for."""

    def to_json(self) -> str:
        """Return the value as the registry keeps it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> "Orders":
        """Rebuild it from ``to_json``'s text."""
        fields = json.loads(text)
        checkpoint = fields["checkpoint"]
        return cls(
            **{
                **fields,
                "drained": tuple(fields["drained"]),
                "checkpoint": CheckpointOrder(**checkpoint) if checkpoint else None,
            }
        )
